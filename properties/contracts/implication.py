"""Whether a kernel's condition leaves out calls of its contract: a search for such a call.

Values at and beside the numbers of the conditions are tried, and layouts made of them: enough for a limit, a list or a
multiple. A missed call narrows nothing: under a contract, cases are drawn from the contract alone.
"""

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

from packproof.base.errors import UsageError
from packproof.base.names import LONG_DTYPES
from packproof.properties.cases.condition import LAYOUT_NAMES, LENGTH_NAMES, Condition
from packproof.properties.cases.domain import GATE, Domain, layout_values, size_names
from packproof.properties.ops.op import Op

_MOST_CALLS = 60_000
_GATES = (0.0, -1.0, -100.0, -1e4, float("-inf"))


def call_outside(condition: Condition, op: Op, contract: Domain) -> Mapping[str, Any] | None:
    """The values of a call inside the contract and outside of the condition; None without one."""
    rules = contract & Domain.of(op.where)
    related = _related_names(condition, rules)
    rules = Domain(tuple(c for c in rules.conditions if c.names & related))
    for values, lengths, key_lengths in islice(_calls(op, related, (condition, *rules.conditions)), _MOST_CALLS):
        try:
            inside = rules.holds(values, lengths, key_lengths)
            if inside and not Domain((condition,)).holds(values, lengths, key_lengths):
                lengths_shown = {"lengths": lengths} if condition.names & LENGTH_NAMES else {}
                return {name: value for name, value in values.items() if name in condition.names} | lengths_shown
        except UsageError:  # such as a remainder by zero
            continue
    return None


def _related_names(condition: Condition, rules: Domain) -> frozenset[str]:
    """The names of the condition, and all names tied to them by rules. A layout ties its own names."""
    layout, names = frozenset(LAYOUT_NAMES), condition.names
    while True:
        grown = names.union(*(c.names for c in rules.conditions if c.names & names), layout if names & layout else ())
        if grown == names:
            return names
        names = grown


def _calls(
    op: Op, names: frozenset[str], conditions: tuple[Condition, ...]
) -> Iterator[tuple[dict[str, Any], list[int], list[int]]]:
    """Values of these names, with lengths of tokens and keys, the simplest first."""
    numbers = sorted({m for c in conditions for n in c.numbers for m in (n - 1, n, n + 1, 2 * n, 3 * n) if m >= 0})
    free_names = sorted(names - set(LAYOUT_NAMES))
    choices = [_values(op, name, numbers) for name in free_names]
    layouts = list(_layouts(numbers)) if names & set(LAYOUT_NAMES) else [([1], [1], 0)]
    for (lengths, key_lengths, slack), sizes in product(layouts, product(*choices)):
        values = layout_values(lengths, slack, key_lengths) | dict(zip(free_names, sizes, strict=True))
        yield values, lengths, key_lengths


def _values(op: Op, name: str, numbers: list[int]) -> list[Any]:
    """The values to try of one name."""
    if name in op.options:
        return [*op.options[name], *numbers]
    if name in size_names(op):
        usual = [size for sizes in (*op.sizes, *op.model_sizes) if isinstance(size := sizes[name], int)]
        return list(dict.fromkeys([*usual, *range(1, 6), *(n for n in numbers if n)]))
    if name == "dtype":
        return list(LONG_DTYPES.values())
    return list(_GATES) if name == GATE else [True, False]


def _layouts(numbers: list[int]) -> Iterator[tuple[list[int], list[int], int]]:
    """Lengths, lengths of keys, and rows of slack."""
    sizes = list(dict.fromkeys([1, 0, 2, 3, 17, *numbers]))
    shapes = [shape for n in sizes for shape in ([n], [n, 1], [1, n], [1] * min(n, 4096))]
    for lengths in [*shapes, []]:
        yield lengths, lengths, 0
    for slack in sizes:
        yield [3], [3], slack
    for lengths, key_lengths in ((x, y) for n in sizes for x, y in (([1], [n]), ([n], [1]))):
        yield lengths, key_lengths, 0
