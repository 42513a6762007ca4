"""Moves a case into a kernel's domain: nearest sizes, then options, then lengths of the same boundary class.

A layout is filled up to a multiple by slack rows, or by a last sequence where a kernel takes no slack. Short sequences
grow to an allowed length, or are removed where none is near. A pack of too many tokens loses them from its longest.
Keys with offsets of their own are moved by their own conditions, after the tokens.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from packproof.properties.cases.case import HARD_DECAY, STRONG_GATES, Case
from packproof.properties.cases.condition import KEY_LAYOUT_NAMES, LAYOUT_NAMES, LENGTH_NAMES
from packproof.properties.cases.domain import (
    GATE,
    Domain,
    condition_values,
    gate_value,
    layout_values,
    optional_inputs,
    size_names,
)
from packproof.properties.cases.sample import Sample
from packproof.properties.ops.op import Op

Sizes = Mapping[str, int | str]
Lengths = tuple[int, ...]
Pair = tuple[int, int]  # the tokens and the keys of a sequence
LayoutTest = Callable[[Sequence[int], int], bool]

_LAYOUT = frozenset(LAYOUT_NAMES)
_MAX_ASSIGNMENTS = 60_000  # assignments tried for the sizes of one case
MAX_AXIS_SIZE = 32_768  # size of one axis: a larger case would not fit the memory of a small machine
_MAX_ADDED_TOKENS = 512  # tokens added to reach a multiple
_REUSE_PENALTY = 3.0  # octaves: a size already used by another case counts as farther away by this much


def fit_sizes(op: Op, domain: Domain, requested_sizes: Iterable[Sizes], dtype: str) -> tuple[dict[str, int | str], ...]:
    """Sizes inside the domain, one for each requested: the nearest, and different from each other where possible."""
    numeric_names = {
        n
        for n in size_names(op)
        if not any(isinstance(size_table.get(n), str) for size_table in (*op.sizes, *op.model_sizes))
    }
    rules = (domain.of_cases & Domain.of(op.where)).within({*numeric_names, "dtype"})
    use_counts: Counter[tuple[str, int | str]] = Counter()
    results = []
    for sizes in requested_sizes:
        nearest = (
            dict(sizes)
            if rules.holds({**sizes, "dtype": dtype})
            else _nearest_sizes(op, rules, sizes, dtype, use_counts)
        )
        if nearest is not None and nearest not in results:
            use_counts.update(nearest.items())
            results.append(nearest)
    return tuple(results)


def _nearest_sizes(
    op: Op, rules: Domain, sizes: Sizes, dtype: str, use_counts: Counter[tuple[str, int | str]]
) -> dict[str, int | str] | None:
    """The sizes inside the rules at the least distance, in octaves; None where no tried assignment is inside."""
    free_names = [
        n for n, size in sizes.items() if isinstance(size, int) and any(n in c.names for c in rules.conditions)
    ]
    fixed_sizes = {n: size for n, size in sizes.items() if n not in free_names}
    # sizes at, beside and at small multiples of the conditions' numbers
    numbers = {m for c in rules.conditions for n in c.numbers if n > 0 for m in (n, n - 1, n + 1, 2 * n, 3 * n, 5 * n)}
    numbers |= {
        size for size_table in (*op.sizes, *op.model_sizes) for size in size_table.values() if isinstance(size, int)
    }

    def octaves_away(name: str, size: int) -> float:
        target = sizes[name]
        assert isinstance(target, int)
        return abs(math.log2(size / target)) + _REUSE_PENALTY * use_counts[name, size] if size and target else size

    def candidates(name: str) -> list[int]:
        axis_rules = rules.within({name, "dtype"})
        target = sizes[name]
        assert isinstance(target, int)
        multiples = {-(-target // n) * n for n in numbers if n}
        fitting_sizes = {
            n
            for n in numbers | multiples | {target}
            if min(target, 1) <= n <= MAX_AXIS_SIZE and axis_rules.holds({name: n, "dtype": dtype})
        }
        # so few that the product over all free axes stays near _MAX_ASSIGNMENTS
        return sorted(fitting_sizes, key=lambda n: (octaves_away(name, n), n))[
            : max(3, int(_MAX_ASSIGNMENTS ** (1 / len(free_names))))
        ]

    best: tuple[float, dict[str, int]] | None = None
    for values in itertools.product(*map(candidates, free_names)):
        candidate = dict(zip(free_names, values, strict=True))
        distance = sum(octaves_away(n, size) for n, size in candidate.items())
        if (best is None or distance < best[0]) and rules.holds({**fixed_sizes, **candidate, "dtype": dtype}):
            best = distance, candidate
    return None if best is None else {n: best[1].get(n, size) for n, size in sizes.items()}


def fit_case(op: Op, domain: Domain, case: Case) -> Case | None:
    """The nearest case inside the domain, with the same sizes; None where there is none."""
    case = _with_gates(op, domain, case)
    if domain.allows(op, case):
        return case
    single_packing = case.replace(key_lengths=None)
    candidates = [single_packing] if case.key_lengths is None else [case, single_packing]
    fitted_cases = (_with_layout(op, domain, _with_options(op, domain, candidate)) for candidate in candidates)
    return next((c for c in fitted_cases if domain.allows(op, c)), None)


def _with_gates(op: Op, domain: Domain, case: Case) -> Case:
    """The case, with hard decay where the domain has no strong gates."""
    rules, weak_case = domain.within({GATE}), case.replace(regime=HARD_DECAY)
    return case if case.regime != STRONG_GATES or rules.holds(gate_value(op, strong=True)) else weak_case


def _with_options(op: Op, domain: Domain, case: Case) -> Case:
    """The case with the fewest changes of optional inputs and options for the domain's conditions on them."""
    rules = domain.of_cases.naming([*optional_inputs(op), *op.options])
    rules = Domain(tuple(c for c in rules.conditions if not c.names & _LAYOUT))
    names = frozenset().union(*(c.names for c in rules.conditions))
    inputs = [n for n in optional_inputs(op) if n in names]
    options = [n for n in dict(case.options) if n in names]
    alternatives = [[n in case.present, n not in case.present] for n in inputs]
    current_options = dict(case.options)
    alternatives += [[current_options[n], *(v for v in op.options[n] if v != current_options[n])] for n in options]

    def count_changes(values: Sequence[Any]) -> int:
        return sum(value != alternative[0] for value, alternative in zip(values, alternatives, strict=True))

    for values in sorted(itertools.product(*alternatives), key=count_changes):
        selection = dict(zip((*inputs, *options), values, strict=True))
        present = [n for n in case.present if selection.get(n, True)]
        present += [n for n in inputs if selection[n] and n not in present]
        candidate = case.replace(
            present=tuple(n for n in op.inputs if n in present),
            options=tuple((n, selection.get(n, v)) for n, v in case.options),
        )
        if rules.holds(condition_values(op, candidate)):
            return candidate
    return case


def _with_layout(op: Op, domain: Domain, case: Case) -> Case:
    """The case with allowed lengths and slack rows near its own; where none are found, outside the domain."""
    values, rules = condition_values(op, case), domain.of_cases.naming(LAYOUT_NAMES)
    if case.key_lengths is None:
        pairs, slack = _fit_tokens(domain, rules, values, [(n, n) for n in case.lengths], case.slack)
        return case.with_lengths(tuple(n for n, _ in pairs)).replace(slack=slack)
    token_rules = Domain(tuple(c for c in rules.conditions if not c.names & set(KEY_LAYOUT_NAMES)))
    # a sequence without tokens may have keys: it gets tokens rather than being removed
    has_empty = token_rules.within(LENGTH_NAMES).holds({}, [0])
    sequences = [(n or int(not has_empty), m) for n, m in zip(case.lengths, case.key_lengths, strict=True)]
    pairs, slack = _fit_tokens(domain, token_rules, values, sequences, case.slack)
    lengths = tuple(n for n, _ in pairs)
    key_lengths = _fit_keys(rules, values, lengths, [m for _, m in pairs], slack)
    return case.with_lengths(lengths).replace(slack=slack, key_lengths=key_lengths)


def _fit_tokens(
    domain: Domain, rules: Domain, values: Mapping[str, Any], sequences: Sequence[Pair], slack: int
) -> tuple[Sequence[Pair], int]:
    """Sequences of allowed lengths near the requested, each with its number of keys, and slack rows.

    Where no layout is allowed, the last one that was tried.
    """
    length_rules = _of_one_sequence(rules)

    @cache
    def length_fits(n: int) -> bool:
        return length_rules.holds(values, [n])

    def is_allowed(lengths: Sequence[int], slack: int) -> bool:
        return rules.holds({**values, **layout_values(lengths, slack)}, lengths)

    nearest = ((_nearest_length(n, length_fits), m) for n, m in sequences)
    fitted = [(n, m) for n, m in nearest if n is not None]
    lengths, keys = [n for n, _ in fitted], [m for _, m in fitted]
    slack = slack if domain.allows_slack else 0
    while not (layout := _fill_layout(lengths, slack, is_allowed, length_fits, allow_slack=domain.allows_slack)):
        if not _shorten_layout(lengths, length_fits):
            layout = tuple(lengths), slack
            break
    return [*zip(layout[0], [*keys, *layout[0][len(keys) :]], strict=False)], layout[1]


def _of_one_sequence(rules: Domain) -> Domain:
    """The conditions on lengths that one sequence decides."""
    return Domain(tuple(c for c in rules.naming(LENGTH_NAMES).conditions if not c.names & (_LAYOUT - LENGTH_NAMES)))


def _fit_keys(
    rules: Domain, values: Mapping[str, Any], lengths: Lengths, requested: Sequence[int], slack: int
) -> Lengths:
    """Allowed numbers of keys near the requested, for sequences of these lengths; the last may get more for a multiple.

    Too many keys are removed from the sequence with the most. Where no numbers are allowed, the last that were tried.
    """
    sequence_rules = _of_one_sequence(rules)

    def is_allowed(keys: Sequence[int]) -> bool:
        return rules.holds({**values, **layout_values(lengths, slack, keys)}, lengths, keys)

    def nearest(n: int, m: int) -> int:
        candidates = (_nearest_length(near, lambda k: sequence_rules.holds(values, [n], [k])) for near in (m, 1))
        return next((k for k in candidates if k is not None), n)

    keys = list(map(nearest, lengths, requested))
    while keys:
        longer_keys = ([*keys[:-1], keys[-1] + more] for more in range(_MAX_ADDED_TOKENS))
        if allowed_keys := next(filter(is_allowed, longer_keys), None):
            return tuple(allowed_keys)
        most = max(range(len(keys)), key=lambda j: keys[j])
        if keys[most] <= 1:
            break
        keys[most] = keys[most] * 3 // 4
    return tuple(keys)


def _nearest_length(n: int, length_fits: Callable[[int], bool]) -> int | None:
    """The nearest allowed length: the same, else longer, else shorter. None where only 0 would do."""
    longer_lengths = range(n, n + _MAX_ADDED_TOKENS) if n else (0,)
    return next((m for m in (*longer_lengths, *range(n - 1, 0, -1)) if length_fits(m)), None)


def _fill_layout(
    lengths: Sequence[int], slack: int, is_allowed: LayoutTest, length_fits: Callable[[int], bool], *, allow_slack: bool
) -> tuple[Lengths, int] | None:
    """The layout of these lengths followed by the first allowed filler: slack rows or sequences; None without one."""

    def candidates() -> Iterator[tuple[Sequence[int], int]]:
        yield from ((lengths, slack + k) for k in range(_MAX_ADDED_TOKENS if allow_slack else 1))
        yield from ((lengths, k) for k in range(slack))
        allowed_lengths = list(filter(length_fits, range(1, _MAX_ADDED_TOKENS)))  # only now: it takes the longest
        yield from (([*lengths, k], 0) for k in allowed_lengths)
        shortest = next(iter(allowed_lengths), 1)
        yield from (([*lengths, *[shortest] * k], 0) for k in range(2, 64))

    return next(((tuple(ns), rows) for ns, rows in candidates() if is_allowed(ns, rows)), None)


def _shorten_layout(lengths: list[int], length_fits: Callable[[int], bool]) -> bool:
    """Shorten the longest sequence, or remove the last one. False where there is none."""
    longest = max(range(len(lengths)), key=lambda j: lengths[j], default=None)
    if longest is None:
        return False
    shorter_length = next((m for m in range(lengths[longest] * 3 // 4, 0, -1) if length_fits(m)), None)
    if shorter_length is not None and lengths[longest] > 1:
        lengths[longest] = shorter_length
    else:
        lengths.pop()
    return True


def find_filler(op: Op, domain: Domain, sample: Sample, *, copies: int = 1) -> tuple[Lengths, int] | None:
    """The filler after a sample for the domain to allow its call: lengths of sequences, and slack rows.

    () and 0 where the call is already allowed, None where no filler helps. No filler sequence is longer than the
    sample's longest, since tables of positions reach no further.

    copies: number of copies of the pack in the call, without slack.
    """
    rules = domain.of_cases.naming(LAYOUT_NAMES)
    values = {
        **gate_value(op, strong=False),
        **{name: option_values[0] for name, option_values in op.options.items()},
        **sample.options,
        **{name: name in sample.inputs for name in optional_inputs(op)},
        "cu_seqlens_k": sample.key_lengths is not None,
        "dtype": sample.token_dtype_name,
        "contiguous": True,
        "gradients": True,
        **sample.sizes,
    }

    def is_allowed(filler_lengths: Lengths, slack: int) -> bool:
        lengths, keys = (*sample.lengths, *filler_lengths), sample.key_lengths
        keys = None if keys is None else (*keys, *filler_lengths)
        layout = layout_values(lengths, sample.slack + slack, keys)
        repeated_counts = {name: layout[name] * copies for name in ("tokens", "sequences", "tokens_k")}
        return rules.holds({**values, **layout, **repeated_counts}, lengths, keys)

    if not rules or is_allowed((), 0):
        return (), 0
    if domain.allows_slack and copies == 1:
        for k in range(1, _MAX_ADDED_TOKENS):
            if is_allowed((), k):
                return (), k
    if op.reductions and op.counted is None:  # a sequence more would change the value of the pack
        return None
    longest = max(sample.lengths, default=0)
    return next(
        ((filler_lengths, 0) for filler_lengths in _filler_lengths(longest) if is_allowed(filler_lengths, 0)), None
    )


def _filler_lengths(longest: int) -> Iterator[Lengths]:
    """Filler lengths in increasing number of tokens, each with as few sequences as possible, none over `longest`."""
    for k in range(_MAX_ADDED_TOKENS):
        if k == 0:
            yield (0,)
        elif longest:
            full_sequences, remainder = divmod(k, longest)
            yield (longest,) * full_sequences + ((remainder,) if remainder else ())
    if longest:
        yield from ((1,) * k for k in range(2, 64))
