"""The mutation operators for CUDA C++: each takes a token and yields edits of its source.

Beside what any program may get wrong they break what these kernels live by: barriers, their phases and stages.
"""

from collections.abc import Callable, Iterator

from packproof.proof.mutants.operators import Edit
from tests.kernels.mutants.tokens import ASSIGNMENTS, Source

_COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_EXTREMA = {"min": "max", "max": "min", "fminf": "fmaxf", "fmaxf": "fminf"}
_COMPONENTS = {"x": "y", "y": "x", "z": "w", "w": "z"}
_HALVES = {"low_half": "high_half", "high_half": "low_half", "first": "second", "second": "first"}
_WAITS = {
    "mbarrier_wait", "wait_until_full", "wait_until_empty", "wgmma_wait", "wait_for_bulk_reads", "wait_for_bulk_stores",
    "wait_for_copies", "__syncthreads", "__syncwarp", "named_barrier", "wgmma_fence", "fence_async_proxy",
    "fence_mbarrier_init",
}  # fmt: skip
_ARRIVALS = {
    "mbarrier_arrive", "mbarrier_arrive_expect", "named_barrier_arrive", "release", "advance", "wgmma_commit",
    "group_copies", "group_bulk_stores", "stop",
}  # fmt: skip


def boundary(source: Source, i: int) -> Iterator[Edit]:
    """< becomes <=, == becomes !=, min becomes max, and so on."""
    text = source.tokens[i].text
    if text in _COMPARISONS and source.is_binary(i):
        yield source.replace(i, i, _COMPARISONS[text])
    elif text in _EXTREMA and source.tokens[i + 1].text == "(":
        yield source.replace(i, i, _EXTREMA[text])


def index(source: Source, i: int) -> Iterator[Edit]:
    """A number becomes one more, a name in a subscript too, + becomes -, a summand is dropped, / becomes %."""
    token = source.tokens[i]
    if token.kind == "number" and token.text.isdigit():
        yield source.replace(i, i, str(int(token.text) + 1))
    elif token.text in {"+", "-", "/", "%"} and source.is_binary(i):
        yield source.replace(i, i, {"+": "-", "-": "+", "/": "%", "%": "/"}[token.text])
        if token.text in {"+", "-"}:
            yield from _dropped_operands(source, i, right_only=token.text == "-")
    elif token.text == "[" and source.partners[i] == i + 2 and source.tokens[i + 1].kind == "name":
        yield source.replace(i + 1, i + 1, f"{source.tokens[i + 1].text} + 1")


def phase(source: Source, i: int) -> Iterator[Edit]:
    """A wait is dropped or lets one more be open, an arrival is dropped or doubled, a parity is flipped."""
    tokens, token = source.tokens, source.tokens[i]
    if token.text in _WAITS | _ARRIVALS and tokens[i - 1].kind != "name":
        opening = i + 1
        if tokens[opening].text == "<":
            yield source.replace(opening + 1, opening + 1, f"{tokens[opening + 1].text} + 1")
            opening = source.partners[opening] + 1
        if tokens[opening].text == "(":
            first = i - 2 if tokens[i - 1].text == "." else i
            call = source.text_of(first, source.partners[opening])
            yield source.replace(first, source.partners[opening], "(void)0")
            if token.text in _ARRIVALS:
                yield source.replace(first, source.partners[opening], f"{call}, {call}")
    elif token.text.endswith("phase") and tokens[i - 1].text not in ASSIGNMENTS and _is_read(source, i):
        yield source.replace(i, i, f"({token.text} ^ 1)")


def stage(source: Source, i: int) -> Iterator[Edit]:
    """Another stage or buffer."""
    token = source.tokens[i]
    if token.text.endswith("stage") and _is_read(source, i):
        first = i - 2 if source.tokens[i - 1].text == "." else i
        yield source.replace(first, i, f"({source.text_of(first, i)} ^ 1)")
    elif token.text == "previous" and source.tokens[i + 1].text == ".":
        yield source.replace(i, i, "ring")


def mask(source: Source, i: int) -> Iterator[Edit]:
    """A condition is true or false, one side of && is dropped, a bound or a mask of bits is dropped."""
    tokens, text = source.tokens, source.tokens[i].text
    if text == "if" and tokens[i + 1].text == "(":
        for value in ("true", "false"):
            yield source.replace(i + 2, source.partners[i + 1] - 1, value)
    elif text in {"&&", "||", "|", "&", "^"} and source.is_binary(i):
        yield from _dropped_operands(source, i, right_only=text in {"&", "^"})
    elif text == "?":
        condition, colon, last = _choice(source, i)
        yield source.replace(condition, last, f"({source.text_of(i + 1, colon - 1)})")
        yield source.replace(condition, last, f"({source.text_of(colon + 1, last)})")
    elif text in _EXTREMA and tokens[i + 1].text == "(":
        for argument in source.arguments(i + 1):
            yield source.replace(i, source.partners[i + 1], f"({source.text_of(*argument)})")
    elif text == "!":
        yield source.replace(i, i, "")


def scale(source: Source, i: int) -> Iterator[Edit]:
    """A factor is dropped or doubled, a sign is dropped; what is added, multiplied or flipped is not, or only that."""
    tokens, token = source.tokens, source.tokens[i]
    if token.text == "*" and source.is_binary(i):
        yield from _dropped_operands(source, i)
    elif token.kind == "number" and token.text.endswith("f") and not token.text.startswith("0x"):
        number = float(token.text.removesuffix("f"))
        yield source.replace(i, i, f"{2 * number if number else 1.0}f")
    elif token.text == "-" and tokens[i + 1].start == token.end and tokens[i + 1].kind == "name":
        yield source.replace(i, i, "")
    elif token.text in ASSIGNMENTS - {"="} and not _in_head_of_loop(source, i):
        yield source.replace(i + 1, source.operand_after(i), "1" if token.text in {"*=", "/="} else "0")
        yield source.replace(i, i, "=")
    elif token.text == "=" and tokens[i - 2].text == "float" and tokens[i + 1].text != "{":
        yield source.replace(i + 1, source.operand_after(i), f"2 * ({source.text_of(i + 1, source.operand_after(i))})")


def swap(source: Source, i: int) -> Iterator[Edit]:
    """Operands, sides of a choice, factors and components change places."""
    tokens, text = source.tokens, source.tokens[i].text
    if text == "-" and source.is_binary(i):
        first, last = source.operand_before(i), source.operand_after(i)
        right, left = source.text_of(i + 1, last), source.text_of(first, i - 1)
        yield source.replace(first, last, f"({right}) - ({left})")
    elif text == "?":
        _, colon, last = _choice(source, i)
        sides = source.text_of(i + 1, colon - 1), source.text_of(colon + 1, last)
        yield source.replace(i, last, f"? ({sides[1]}) : ({sides[0]})")
    elif text in _COMPONENTS and tokens[i - 1].text == "." and tokens[i - 2].text != "threadIdx":
        yield source.replace(i, i, _COMPONENTS[text])
    elif text in _HALVES and tokens[i + 1].text == "(":
        yield source.replace(i, i, _HALVES[text])
    elif text == "fmaf":
        _, b, c = (source.text_of(*argument) for argument in source.arguments(i + 1))
        (b_first, _), (_, c_last) = source.arguments(i + 1)[1:]
        yield source.replace(b_first, c_last, f"{c}, {b}")


def _dropped_operands(source: Source, i: int, *, right_only: bool = False) -> Iterator[Edit]:
    """Without the right operand; without the left one, where it is the first of several."""
    first, last = source.operand_before(i), source.operand_after(i)
    yield source.replace(first, last, source.text_of(first, i - 1))
    symbol = source.tokens[i].text
    chained = any(source.tokens[j].text == symbol and source.is_binary(j) for j in _flat(source, first, i))
    if not right_only and not chained:
        yield source.replace(first, last, source.text_of(i + 1, last))


def _flat(source: Source, first: int, stop: int) -> Iterator[int]:
    """Tokens outside of brackets."""
    j = first
    while j < stop:
        yield j
        j = source.partners.get(j, j) + 1


def _choice(source: Source, i: int) -> tuple[int, int, int]:
    """Of a ?: the first token of its condition, its colon and its last token."""
    depth, j = 1, i + 1
    while depth:
        j = source.partners.get(j, j)
        depth += {"?": 1, ":": -1}.get(source.tokens[j].text, 0)
        j += 1
    colon, last = j - 1, source.operand_after(j - 1)
    while source.tokens[last + 1].text in {"?", ":"}:
        last = source.operand_after(last + 1)
    return source.operand_before(i), colon, last


def _is_read(source: Source, i: int) -> bool:
    before, after = source.tokens[i - 1].text, source.tokens[i + 1].text
    return before not in {"++", "int", "unsigned"} and after not in ASSIGNMENTS | {"("}


def _in_head_of_loop(source: Source, i: int) -> bool:
    """Whether a token stands in the brackets after `for`: without its step, a loop would not end."""
    return any(
        source.tokens[opening - 1].text == "for" and opening < i < closing
        for opening, closing in source.partners.items()
        if source.tokens[opening].text == "("
    )


Operator = Callable[[Source, int], Iterator[Edit]]
OPERATORS: dict[str, Operator] = {o.__name__: o for o in (boundary, index, phase, stage, mask, scale, swap)}
