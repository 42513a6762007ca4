"""CUDA C++ as tokens, and what mutation operators ask of them: brackets, operands, the functions of a file.

Not a parser: it relies on the layout of kernels/, where a binary operator has a space on each side, a sign has none
after it and a template's bracket none before it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from packproof.proof.mutants.operators import Edit

_TOKEN = re.compile(
    r"""(?P<skipped>\s+|//[^\n]*|/\*.*?\*/|\#(?:\\\n|[^\n])*)   # spaces, comments, lines of the preprocessor
    |(?P<string>"(?:\\.|[^"\\])*")
    |(?P<number>0x[0-9a-fA-F.]+(?:p[+-]?\d+)?[a-zA-Z]*|\d+(?:\.\d*)?(?:e[+-]?\d+)?[a-zA-Z]*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<symbol><<=|>>=|->|\+\+|--|&&|\|\||[-+*/%&|^<>=!]=|<<|>>|::|.)""",
    re.DOTALL | re.VERBOSE,
)
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_PRECEDENCE = {
    symbol: rank
    for rank, symbols in enumerate(("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %"))
    for symbol in symbols.split()
}
ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="})
_ENDS_OF_AN_EXPRESSION = ASSIGNMENTS | {",", ";", "?", ":", "return", *_PAIRS, *_PAIRS.values()}
_COMPUTES_NOTHING = {"static_assert", "hold", "increase_registers", "decrease_registers", "__launch_bounds__", "sizeof"}
_NOT_A_NAME = {"__launch_bounds__", "__align__", "alignas"}


class Token(NamedTuple):
    """A token that the compiler sees."""

    kind: str
    """string, number, name or symbol."""
    text: str
    start: int
    end: int


class Definition(NamedTuple):
    """A function or a constant."""

    name: str
    """With its struct: Ring.advance."""
    tokens: range
    """What it computes: after the parameters of a function, after the = of a constant."""


@dataclass(frozen=True)
class Source:
    """The text of a source, by tokens."""

    text: str

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        matches = (match for match in _TOKEN.finditer(self.text) if match.lastgroup != "skipped")
        return tuple(Token(str(match.lastgroup), match[0], match.start(), match.end()) for match in matches)

    @cached_property
    def partners(self) -> dict[int, int]:
        """Brackets by index, each way: of calls, subscripts, blocks and templates."""
        partners: dict[int, int] = {}
        opened: list[tuple[int, str]] = []
        for i, token in enumerate(self.tokens):
            if token.text in _PAIRS:
                opened.append((i, _PAIRS[token.text]))
            elif token.text == "<" and self._opens_template(i):
                opened.append((i, ">"))
            elif opened and token.text == opened[-1][1]:
                start = opened.pop()[0]
                partners |= {start: i, i: start}
        assert not opened, f"{self.tokens[opened[-1][0]]} is not closed"
        return partners

    def _opens_template(self, i: int) -> bool:
        before = self.tokens[i - 1]
        return before.text == "template" or (before.kind == "name" and before.end == self.tokens[i].start)

    def is_binary(self, i: int) -> bool:
        """Whether a token is an operator between two operands."""
        before, token, after = self.tokens[i - 1], self.tokens[i], self.tokens[i + 1]
        is_spaced = before.end < token.start and token.end < after.start
        return token.text in _PRECEDENCE and i not in self.partners and is_spaced

    def operand_after(self, i: int) -> int:
        """The last token of the right operand of a binary operator; without one, of the expression after it."""
        rank, j = _PRECEDENCE.get(self.tokens[i].text, -1), i + 1
        while True:
            if j in self.partners and self.partners[j] > j:
                j = self.partners[j]
            elif self.tokens[j].text in _ENDS_OF_AN_EXPRESSION or (
                self.is_binary(j) and _PRECEDENCE[self.tokens[j].text] <= rank
            ):
                return j - 1
            j += 1

    def operand_before(self, i: int) -> int:
        """The first token of the left operand of a binary operator; without one, of the expression before it."""
        rank, j = _PRECEDENCE.get(self.tokens[i].text, -1), i - 1
        while True:
            if j in self.partners and self.partners[j] < j and self.tokens[j].text != "}":
                j = self.partners[j]
            elif self.tokens[j].text in _ENDS_OF_AN_EXPRESSION or (
                self.is_binary(j) and _PRECEDENCE[self.tokens[j].text] < rank
            ):
                return j + 1
            j -= 1

    def text_of(self, first: int, last: int) -> str:
        return self.text[self.tokens[first].start : self.tokens[last].end]

    def replace(self, first: int, last: int, new: str) -> Edit:
        """Other text for these tokens."""
        return Edit(self.tokens[first].start, self.tokens[last].end, new)

    def arguments(self, opening: int) -> list[tuple[int, int]]:
        """First and last token of each argument between a bracket and its partner."""
        arguments, first, j, end = [], opening + 1, opening + 1, self.partners[opening]
        while j < end:
            if j in self.partners:
                j = self.partners[j]
            elif self.tokens[j].text == ",":
                arguments.append((first, j - 1))
                first = j + 1
            j += 1
        return [*arguments, (first, end - 1)] if first < end else arguments

    def definitions(self) -> Iterator[Definition]:
        """Functions and constants, in order."""
        yield from self._definitions(0, len(self.tokens), "")

    def _definitions(self, start: int, stop: int, prefix: str) -> Iterator[Definition]:
        first = i = start
        while i < stop:
            text, closing = self.tokens[i].text, self.partners.get(i, i)
            if text == "{":
                yield from self._block(range(first, i), closing, prefix)
            if text == ";":
                yield from self._constant(range(first, i), prefix)
            i = closing + 1
            if text in {"{", ";"}:
                first = i

    def _block(self, head: range, closing: int, prefix: str) -> Iterator[Definition]:
        """What begins with `head` and ends with a closing brace: a struct or a function."""
        words = [self.tokens[j].text for j in head]
        if "struct" in words:
            name = next(self.tokens[j].text for j in reversed(head) if self.tokens[j].kind == "name")
            yield from self._definitions(head.stop + 1, closing, f"{name}.")
        elif "(" in words and "enum" not in words:
            callees = (j for j in head if self.tokens[j + 1].text == "(" and self.tokens[j].kind == "name")
            name_index = next(j for j in callees if self.tokens[j].text not in _NOT_A_NAME)
            body = range(self.partners[name_index + 1] + 1, closing)
            yield Definition(prefix + self.tokens[name_index].text, body)

    def _constant(self, head: range, prefix: str) -> Iterator[Definition]:
        equals = next((j for j in head if self.tokens[j].text == "="), None)
        if equals is not None:
            yield Definition(prefix + self.tokens[equals - 1].text, range(equals + 1, head.stop))

    @cached_property
    def fixed(self) -> frozenset[int]:
        """Tokens that compute nothing, or what the compiler alone uses: assertions, arguments of templates, hints."""
        fixed: set[int] = set()
        for i, token in enumerate(self.tokens):
            is_bracket = token.text == "<" or self._sizes_array(i)
            opening = i + 1 if token.text in _COMPUTES_NOTHING else i
            if opening in self.partners and (is_bracket or opening > i):
                fixed.update(range(i, self.partners[opening] + 1))
        return frozenset(fixed)

    def _sizes_array(self, i: int) -> bool:
        """Whether a bracket has the size of a declared array, as in `float y[32]` and `unsigned a[2], b[2][4]`."""
        j = i
        while self.tokens[j].text == "[" and self.tokens[j - 1].text == "]":
            j = self.partners[j - 1]
        before = self.tokens[j - 2]
        if self.tokens[j].text != "[" or self.tokens[j - 1].kind != "name" or before.text in {"return", "else"}:
            return False
        return before.kind == "name" or (before.text == "," and self._declares(j - 2))

    def _declares(self, j: int) -> bool:
        """Whether the statement of a token begins with a type and a name."""
        while self.tokens[j - 1].text not in {";", "{", "}", "("}:
            j = self.partners[j - 1] if self.partners.get(j - 1, j) < j - 1 else j - 1
        return self.tokens[j].kind == self.tokens[j + 1].kind == "name" and self.tokens[j].text != "return"
