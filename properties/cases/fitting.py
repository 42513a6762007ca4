"""Moves a case into a kernel's domain: nearest sizes, then options, then lengths of the same boundary class.

A layout is filled up to a multiple by slack rows, or by a last sequence where a kernel takes no slack. Short sequences
grow to an allowed length, or are removed where none is near. A pack of too many tokens loses them from its longest.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from packproof.properties.cases.case import STRONG_GATES, Case
from packproof.properties.cases.condition import LAYOUT
from packproof.properties.cases.domain import GATE, Domain, axes, gate_value, layout_values, optional_inputs, values_of
from packproof.properties.cases.sample import Sample
from packproof.properties.op import Op

Sizes = Mapping[str, int | str]
Lengths = tuple[int, ...]
Holds = Callable[[Sequence[int], int], bool]

_MOST_SIZES = 60_000  # assignments tried for the sizes of one case
LARGEST = 32_768  # size of one axis: a larger case would not fit the memory of a small machine
_FARTHEST = 512  # tokens added to reach a multiple
_REPEATED = 3.0  # octaves: a size already used by another case counts as farther away by this much


def fitted_sizes(op: Op, domain: Domain, wanted: Iterable[Sizes], dtype: str) -> tuple[dict[str, int | str], ...]:
    """Sizes inside the domain, one for each requested: the nearest, and different from each other where possible."""
    numeric = {
        n for n in axes(op) if not any(isinstance(listed.get(n), str) for listed in (*op.sizes, *op.model_sizes))
    }
    rules = (domain.of_cases & Domain.of(op.where)).within({*numeric, "dtype"})
    used: Counter[tuple[str, int | str]] = Counter()
    found = []
    for sizes in wanted:
        nearest = dict(sizes) if rules.holds({**sizes, "dtype": dtype}) else _nearest(op, rules, sizes, dtype, used)
        if nearest is not None and nearest not in found:
            used.update(nearest.items())
            found.append(nearest)
    return tuple(found)


def _nearest(
    op: Op, rules: Domain, sizes: Sizes, dtype: str, used: Counter[tuple[str, int | str]]
) -> dict[str, int | str] | None:
    """The sizes inside the rules at the least distance, in octaves; None where no tried assignment is inside."""
    free = [n for n, size in sizes.items() if isinstance(size, int) and any(n in c.names for c in rules.conditions)]
    fixed = {n: size for n, size in sizes.items() if n not in free}
    # sizes at, beside and at small multiples of the conditions' numbers
    numbers = {m for c in rules.conditions for n in c.numbers if n > 0 for m in (n, n - 1, n + 1, 2 * n, 3 * n, 5 * n)}
    numbers |= {size for listed in (*op.sizes, *op.model_sizes) for size in listed.values() if isinstance(size, int)}

    def far(name: str, size: int) -> float:
        there = sizes[name]
        assert isinstance(there, int)
        return abs(math.log2(size / there)) + _REPEATED * used[name, size] if size and there else size

    def candidates(name: str) -> list[int]:
        alone = rules.within({name, "dtype"})
        there = sizes[name]
        assert isinstance(there, int)
        multiples = {-(-there // n) * n for n in numbers if n}
        fit = {
            n
            for n in numbers | multiples | {there}
            if min(there, 1) <= n <= LARGEST and alone.holds({name: n, "dtype": dtype})
        }
        # so few that the product over all free axes stays near _MAX_ASSIGNMENTS
        return sorted(fit, key=lambda n: (far(name, n), n))[: max(3, int(_MOST_SIZES ** (1 / len(free))))]

    best: tuple[float, dict[str, int]] | None = None
    for values in itertools.product(*map(candidates, free)):
        tried = dict(zip(free, values, strict=True))
        distance = sum(far(n, size) for n, size in tried.items())
        if (best is None or distance < best[0]) and rules.holds({**fixed, **tried, "dtype": dtype}):
            best = distance, tried
    return None if best is None else {n: best[1].get(n, size) for n, size in sizes.items()}


def fitted(op: Op, domain: Domain, case: Case) -> Case | None:
    """The nearest case inside the domain, with the same sizes; None where there is none."""
    case = _with_gates(op, domain, case)
    if domain.allows(op, case):
        return case
    plain = _with_options(op, domain, case.replace(key_lengths=None))
    lengths, slack = _layout(op, domain, plain)
    plain = plain.with_lengths(lengths).replace(slack=slack)
    tried = [plain] if case.key_lengths is None else [_with_keys(op, domain, plain, case.key_lengths), plain]
    return next((c for c in tried if domain.allows(op, c)), None)


def _with_gates(op: Op, domain: Domain, case: Case) -> Case:
    """The case, with hard decay where the domain has no strong gates."""
    rules, weak = domain.within({GATE}), case.replace(regime="hard decay")
    return case if case.regime != STRONG_GATES or rules.holds(gate_value(op, strong=True)) else weak


def _with_keys(op: Op, domain: Domain, case: Case, keys: Lengths) -> Case:
    """The case with a second packing of the nearest allowed lengths; missing ones are as in the first packing."""
    rules, values = domain.of_cases.within({"length", *axes(op), *op.options}), values_of(op, case)
    wanted = [*keys, *case.lengths[len(keys) :]][: len(case.lengths)]
    near = (_near(m, lambda n: rules.holds(values, [n])) for m in wanted)
    return case.replace(key_lengths=tuple(n if m is None else m for n, m in zip(case.lengths, near, strict=True)))


def _with_options(op: Op, domain: Domain, case: Case) -> Case:
    """The case with the fewest changes of optional inputs and options for the domain's conditions on them."""
    rules = domain.of_cases.naming([*optional_inputs(op), *op.options])
    rules = Domain(tuple(c for c in rules.conditions if not c.names & set(LAYOUT)))
    names = frozenset().union(*(c.names for c in rules.conditions))
    inputs = [n for n in optional_inputs(op) if n in names]
    options = [n for n in dict(case.options) if n in names]
    ways = [[n in case.present, n not in case.present] for n in inputs]
    given = dict(case.options)
    ways += [[given[n], *(v for v in op.options[n] if v != given[n])] for n in options]

    def changed(values: Sequence[Any]) -> int:
        return sum(value != way[0] for value, way in zip(values, ways, strict=True))

    for values in sorted(itertools.product(*ways), key=changed):
        chosen = dict(zip((*inputs, *options), values, strict=True))
        kept = [n for n in case.present if chosen.get(n, True)]
        kept += [n for n in inputs if chosen[n] and n not in kept]
        tried = case.replace(
            present=tuple(n for n in op.inputs if n in kept),
            options=tuple((n, chosen.get(n, v)) for n, v in case.options),
        )
        if rules.holds(values_of(op, tried)):
            return tried
    return case


def _layout(op: Op, domain: Domain, case: Case) -> tuple[Lengths, int]:
    """Allowed lengths and slack rows near the case's; where none are found, a layout outside the domain."""
    values = values_of(op, case)
    rules = domain.of_cases.naming(LAYOUT)
    each = Domain(tuple(c for c in rules.conditions if "length" in c.names))
    alone = Domain(tuple(c for c in each.conditions if not c.names & (set(LAYOUT) - {"length"})))

    def fits(n: int) -> bool:
        return alone.holds(values, [n])

    def allowed(lengths: Sequence[int], slack: int) -> bool:
        return rules.holds({**values, **layout_values(lengths, slack)}, lengths)

    slack = case.slack if domain.allows_slack else 0
    lengths = [n for n in (_near(n, fits) for n in case.lengths) if n is not None]
    while not (done := _filled(lengths, slack, allowed, fits, slacks=domain.allows_slack)):
        if not _given_up(lengths, fits):
            return tuple(lengths), slack
    return done


def _near(n: int, fits: Callable[[int], bool]) -> int | None:
    """The nearest allowed length: the same, else longer, else shorter. None where only 0 would do."""
    longer = range(n, n + _FARTHEST) if n else (0,)
    return next((m for m in (*longer, *range(n - 1, 0, -1)) if fits(m)), None)


def _filled(
    lengths: Sequence[int], slack: int, allowed: Holds, fits: Callable[[int], bool], *, slacks: bool
) -> tuple[Lengths, int] | None:
    """The layout of these lengths followed by the first allowed filler: slack rows or sequences; None without one."""
    fillers = [(lengths, slack + k) for k in range(_FARTHEST if slacks else 1)]
    fillers += [(lengths, k) for k in range(slack)]
    shortest = next((k for k in range(1, _FARTHEST) if fits(k)), 1)
    fillers += [([*lengths, k], 0) for k in range(1, _FARTHEST) if fits(k)]
    fillers += [([*lengths, *[shortest] * k], 0) for k in range(2, 64)]
    return next(((tuple(ns), rows) for ns, rows in fillers if allowed(ns, rows)), None)


def _given_up(lengths: list[int], fits: Callable[[int], bool]) -> bool:
    """Shorten the longest sequence, or remove the last one. False where there is none."""
    longest = max(range(len(lengths)), key=lambda j: lengths[j], default=None)
    if longest is None:
        return False
    shorter = next((m for m in range(lengths[longest] * 3 // 4, 0, -1) if fits(m)), None)
    if shorter is not None and lengths[longest] > 1:
        lengths[longest] = shorter
    else:
        lengths.pop()
    return True


def fillers(op: Op, domain: Domain, sample: Sample, *, copies: int = 1) -> tuple[Lengths, int] | None:
    """The filler after a sample for the domain to allow its call: lengths of sequences, and slack rows.

    () and 0 where the call is already allowed, None where no filler helps. No filler sequence is longer than the
    sample's longest, since tables of positions reach no further.

    copies: number of copies of the pack in the call, without slack.
    """
    rules = domain.of_cases.naming(LAYOUT)
    values = {
        **gate_value(op, strong=False),
        **{name: each[0] for name, each in op.options.items()},
        **sample.options,
        **{name: name in sample.inputs for name in optional_inputs(op)},
        "cu_seqlens_k": sample.key_lengths is not None,
        "dtype": str(sample.inputs[next(iter(op.inputs))].dtype).removeprefix("torch."),
        "contiguous": True,
        "gradients": True,
        **sample.sizes,
    }

    def allowed(added: Lengths, slack: int) -> bool:
        layout = layout_values((*sample.lengths, *added), sample.slack + slack)
        many = {name: layout[name] * copies for name in ("tokens", "sequences")}
        return rules.holds({**values, **layout, **many}, (*sample.lengths, *added))

    if not rules or allowed((), 0):
        return (), 0
    if domain.allows_slack and copies == 1:
        for k in range(1, _FARTHEST):
            if allowed((), k):
                return (), k
    longest = max(sample.lengths, default=0)
    return next(((added, 0) for added in _sequences(longest) if allowed(added, 0)), None)


def _sequences(longest: int) -> Iterator[Lengths]:
    """Filler lengths in increasing number of tokens, each with as few sequences as possible, none over `longest`."""
    for k in range(_FARTHEST):
        if k == 0:
            yield (0,)
        elif longest:
            whole, rest = divmod(k, longest)
            yield (longest,) * whole + ((rest,) if rest else ())
    if longest:
        yield from ((1,) * k for k in range(2, 64))
