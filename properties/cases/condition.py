"""One condition of a domain: comparisons and flags in Python's syntax, joined by `and`, `or` and `not`."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import CodeType
from typing import Any

from packproof.base.errors import UsageError
from packproof.base.names import LONG_DTYPES, SHORT_DTYPES, short_dtype

KEY_LAYOUT_NAMES = ("tokens_k", "longest_k", "length_k")  # of the keys of a second packing
LAYOUT_NAMES = ("tokens", "sequences", "slack", "longest", "length", *KEY_LAYOUT_NAMES)
LENGTH_NAMES = frozenset({"length", "length_k"})  # each sequence has its own
_MAX_CHARACTERS = 500
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_GRAMMAR = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, *_COMPARISONS),
    *(ast.BinOp, *_OPERATORS, ast.Name, ast.Load, ast.Constant, ast.Tuple),
)
_GLOBALS = {"__builtins__": {}, **LONG_DTYPES}


@dataclass(frozen=True)
class Condition:
    """One condition. Raises UsageError where the text is not a condition or does not depend on the call."""

    text: str

    def __post_init__(self) -> None:
        if len(self.text) > _MAX_CHARACTERS:
            raise UsageError(f"domain: a condition of {len(self.text)} characters; at most {_MAX_CHARACTERS} are read")
        try:
            tree = ast.parse(self.text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError) as error:
            raise UsageError(f"domain: {self.text!r} cannot be read: {error}") from None
        for node in ast.walk(tree):
            if not isinstance(node, _GRAMMAR) or _calculates_with_text(node):
                expression = ast.unparse(node) or self.text
                raise UsageError(
                    f"domain: {self.text!r} has {expression!r}; expected comparisons of names, numbers and tuples, "
                    "such as 'k in (64, 128)', 'd % 8 == 0' or 'length > 0', with 'and', 'or' or 'not'"
                )
        if problem := next(_problems(tree.body), None):
            raise UsageError(f"domain: {self.text!r}: {problem}")
        if not self.names:
            raise UsageError(f"domain: {self.text!r} names nothing of a call; expected a name, as in 'd % 8 == 0'")

    @cached_property
    def names(self) -> frozenset[str]:
        return _names(ast.parse(self.text.strip(), mode="eval"))

    @cached_property
    def flags(self) -> frozenset[str]:
        """The names used without a comparison."""
        return frozenset(_flags(ast.parse(self.text.strip(), mode="eval").body))

    @cached_property
    def numbers(self) -> frozenset[int]:
        """The numbers used in comparisons and arithmetic."""
        tree = ast.parse(self.text.strip(), mode="eval")
        return frozenset(n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) is int)

    @cached_property
    def _code(self) -> CodeType:
        return compile(ast.parse(self.text.strip(), mode="eval"), "domain", "eval")

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether it holds for these values of its names. Raises UsageError where it cannot be evaluated."""
        try:
            return bool(eval(self._code, _GLOBALS, values))  # its grammar has no calls
        except (ArithmeticError, TypeError, NameError) as error:
            raise UsageError(f"domain: {self.text!r} cannot be worked out: {error}") from None


def conditions(texts: str | Sequence[str]) -> tuple[Condition, ...]:
    """The conditions of the texts; a text may hold several, separated by `;`. Raises UsageError."""
    if not isinstance(texts, str | Sequence) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"domain: {texts!r}; expected conditions, such as 'k in (64, 128)' or ['d % 8 == 0']")
    text_list = [texts] if isinstance(texts, str) else texts
    parts = [part.strip() for text in text_list for part in text.split(";")]
    return tuple(map(Condition, dict.fromkeys(_with_short_dtypes(part) for part in parts if part)))


def _with_short_dtypes(text: str) -> str:
    """A condition with dtypes as fp32, which users also write as float32, torch.float32 or "float32"."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return text  # the condition reports it
    before = ast.dump(tree)
    tree = _ShortDtypes().visit(tree)
    return text if ast.dump(tree) == before else ast.unparse(tree)


class _ShortDtypes(ast.NodeTransformer):
    """Renames the dtypes in comparisons with `dtype`."""

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        if "dtype" in _names(node):
            node.left = _short_dtype(node.left)
            node.comparators = [_short_dtype(value) for value in node.comparators]
        return node


def _short_dtype(node: ast.expr) -> ast.expr:
    match node:
        case ast.Tuple(elts=parts):
            return ast.Tuple([_short_dtype(part) for part in parts], node.ctx)
        case ast.Constant(value=str(name)):
            pass
        case ast.Name() | ast.Attribute():
            name = ast.unparse(node)
        case _:
            return node
    bare_name = name.removeprefix("torch.")
    is_dtype = bare_name in SHORT_DTYPES or bare_name in LONG_DTYPES
    return ast.Name(short_dtype(bare_name), ast.Load()) if is_dtype else node


def _calculates_with_text(node: ast.AST) -> bool:
    parts = (node.left, node.right) if isinstance(node, ast.BinOp) else ()
    return any(isinstance(p, ast.Tuple) or (isinstance(p, ast.Constant) and type(p.value) is not int) for p in parts)


def _names(tree: ast.AST) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)) - set(LONG_DTYPES)


def _flags(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.BoolOp(values=parts):
            for part in parts:
                yield from _flags(part)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _flags(operand)
        case ast.Name(id=name):
            yield name


def _problems(node: ast.expr) -> Iterator[str]:
    """Why an expression is not a condition, and how to write it instead."""
    text = ast.unparse(node)
    match node:
        case ast.BoolOp(values=parts):
            for part in parts:
                yield from _problems(part)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _problems(operand)
        case ast.Compare():
            yield from _comparison_problems(node)
        case ast.Tuple(elts=parts):
            rewritten = "; ".join(map(ast.unparse, parts))
            yield f"conditions stand apart by ';', not by ','{f': write {rewritten!r}' if rewritten else ''}"
        case ast.Name(id=name) if name in LONG_DTYPES:
            yield f"{name!r} alone is no condition; write 'dtype == {name}', or 'dtype in (bf16, fp16)'"
        case ast.Name(id="dtype"):
            yield "'dtype' alone is no condition; write 'dtype == bf16', or 'dtype in (bf16, fp16)'"
        case ast.Name(id=name) if name in LAYOUT_NAMES:
            yield f"{name!r} is a number, not a condition; write '{name} > 0', '{name} == 0' or another comparison"
        case ast.BinOp() | ast.UnaryOp():
            yield f"{text!r} is a number, not a condition; write '{text} == 0', '{text} != 0' or another comparison"
        case ast.Constant():
            yield f"{text} alone is no condition; write 'NAME == {text}', or all values in one tuple: 'k in (64, 128)'"


def _comparison_problems(node: ast.Compare) -> Iterator[str]:
    values = [node.left, *node.comparators]
    for tuple_operand in (value for value in values[:-1] if isinstance(value, ast.Tuple)):
        yield f"{ast.unparse(tuple_operand)} is compared as a whole; write a comparison of each, with ';' between them"
    for previous, operator, value in zip(values, node.ops, node.comparators, strict=False):
        name, text = ast.unparse(previous), ast.unparse(value)
        is_in, negated = isinstance(operator, ast.In | ast.NotIn), isinstance(operator, ast.NotIn | ast.NotEq)
        word = "not in" if negated else "in"
        if is_in and not isinstance(value, ast.Tuple):
            yield f"{word!r} takes a tuple; write '{name} {word} ({text},)'"
        if isinstance(value, ast.Tuple) and not is_in:
            yield f"a tuple is compared by {word!r}; write '{name} {word} {text}'"
    for value in values:
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        for part in _elements(parts):
            yield from _value_problems(part)


def _elements(parts: list[ast.expr]) -> list[ast.expr]:
    """The values that are compared with; of tuples alone, such as windows, those in the tuples."""
    tuples = [part.elts for part in parts if isinstance(part, ast.Tuple)]
    return [x for elements in tuples for x in elements] if len(tuples) == len(parts) else parts


def _value_problems(node: ast.expr) -> Iterator[str]:
    """Why an operand of a comparison is not a name, a number, text or arithmetic of these."""
    text = ast.unparse(node)
    match node:
        case ast.BinOp(left=left, right=right):
            yield from _value_problems(left)
            yield from _value_problems(right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield from _value_problems(operand)
        case ast.Constant(value=str(word)) if word in LONG_DTYPES:
            yield f"a dtype is written without quotes: {word}"
        case ast.Tuple() | ast.Compare() | ast.BoolOp() | ast.UnaryOp():
            yield f"{text!r} is compared with a value; write each comparison of its own, with 'and' or 'or' between"
