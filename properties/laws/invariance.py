"""Properties of the pack: a sequence computes the same as alone, at any place and beside any other sequences.

Packing-unpacking invariance is f(S) = unpack(f(pack(S))) (Xu et al. 2024, section 3.1), for values and gradients.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from packproof.base.axes import is_in_pool, role
from packproof.base.law_names import LAWS
from packproof.properties.bounds.budget import Budget
from packproof.properties.bounds.drawn_roundings import COPIES
from packproof.properties.bounds.oracle import OracleAnswer
from packproof.properties.calling.tensor_key import TensorKey, gradient
from packproof.properties.cases.case import Case, shorten
from packproof.properties.cases.result_tensors import Tensors
from packproof.properties.cases.sample import Sample, sum_in_float64
from packproof.properties.cases.space import CROWDED_LENGTHS, Space, golden_case
from packproof.properties.judgement.comparison import Comparison, Origin
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.laws.shared_pages import compare_shared_pages
from packproof.properties.laws.violation import COMBINED_NAMES, NAN_IN_SLACK, Violation
from packproof.properties.ops.reductions import combine, shares

_MOST_SEQUENCES = 6
_CHANCE_EXCESS = 4.0  # 16 copies make a budget too small by a factor of 4 with a probability below 1e-7
_PACK = "aaa bbbbb cc"
_SEPARATE_SEQUENCES = (
    "The reference has to compute each sequence by itself, as `split_sequences` and `join_sequences` help to do."
)


def _reference(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    yield from against_reference(kernel, kernel.sample(case))


def against_reference(kernel: KernelUnderTest, sample: Sample, note: str = "") -> Iterator[Violation]:
    """The violations of `reference` at one sample. note: how a property has changed the call.

    A budget that was drawn from few copies is too small for some elements: a small excess is judged by more copies.
    """
    answer = kernel.expect(sample)
    violations = list(_beyond_budgets(kernel, sample, answer, note))
    if answer.drawn_from_few and violations and all(_may_be_chance(v) for v in violations):
        violations = list(_beyond_budgets(kernel, sample, kernel.expect(sample, COPIES), note))
    yield from violations


def _may_be_chance(violation: Violation) -> bool:
    return violation.excess is not None and violation.excess < _CHANCE_EXCESS


def _beyond_budgets(kernel: KernelUnderTest, sample: Sample, answer: OracleAnswer, note: str) -> Iterator[Violation]:
    for key, x in kernel.cached_run(sample).items():
        rows = kernel.row_map(key, sample)
        yield from Comparison(key, x, answer.values[key], rows, answer.budgets[key], note=note).violations()


def _cases_with_long_sums(space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    """The drawn cases; on a GPU, for gradients that are sums, also a pack of thousands of tokens."""
    sizes = space.plain_sizes[:1] if space.on_gpu and space.summed_inputs else ()
    return [*drawn_cases, *(golden_case(space, 0, CROWDED_LENGTHS, size, rich=True) for size in sizes)]


REFERENCE = Property(
    "reference",
    LAWS["reference"],
    _reference,
    cases=_cases_with_long_sums,
    shares="reference",
    crosses_thresholds=True,
    illustration=Illustration(
        "|f(S) − r(S)| ≤ budget,   |f′(S) − r′(S)| ≤ budget,   r: the same mathematics in float64, token by token",
        ("kernel", _PACK),
        ("reference", _PACK),
        "bugs that the reference has too; therefore it shares no code with the kernel",
    ),
)


def _packing(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """An empty sequence has only its states to compare, as has one of queries without keys or keys without queries.

    `metadata` judges calls of empty packs.
    """
    sample = kernel.sample(case)
    packed = kernel.cached_run(sample)
    covers_all = len(case.lengths) <= 2 * _MOST_SEQUENCES
    comparable = _comparable_sequences(kernel, sample, packed, min)
    selected = comparable if covers_all else _select_sequences(case, comparable)
    sees_nothing = any(n and j not in selected for j, n in enumerate(case.lengths))
    separate_samples = {j: sample.alone(j) for j in selected}
    separate_runs = {j: kernel.cached_run(part) for j, part in separate_samples.items()}
    for key, x in packed.items():
        if key.name in kernel.op.reductions and not key.is_gradient:
            if covers_all and separate_runs and not sees_nothing:
                yield from _compare_reduction(kernel, key, x, sample, separate_runs)
        elif not kernel.is_shared(key, sample):
            for j, run in separate_runs.items():
                axes = kernel.row_map(key, sample).axes
                spans = zip(sample.spans(j, axes), separate_samples[j].spans(0, axes), strict=True)
                for rows, separate_rows in spans:
                    packed_origin, separate_origin = (
                        Origin(sample, rows.start),
                        Origin(separate_samples[j], separate_rows.start),
                    )
                    yield from kernel.agree(
                        key, x[rows], run[key][separate_rows], packed_origin, against=separate_origin, other="alone"
                    )
        elif covers_all and separate_runs and not sees_nothing:  # queries not run alone add to a sink's gradient too
            summands = [run[key] for run in separate_runs.values()]
            yield from kernel.agree(
                key, x, sum_in_float64(summands), Origin(sample), other="sum over the sequences", summands=summands
            )
    if kernel.page_sizes and kernel.op.packs_keys:
        yield from compare_shared_pages(kernel, case)


def _compare_reduction(
    kernel: KernelUnderTest, key: TensorKey, x: Tensor, sample: Sample, separate_runs: Mapping[int, Tensors]
) -> Iterator[Violation]:
    """A reduction over the pack, from its values for the sequences alone."""
    values, counts = [run[key] for run in separate_runs.values()], [sample.counts[j] for j in separate_runs]
    kind = kernel.op.reductions[key.name]
    weights = shares(kind, counts, values)

    def allowed() -> Budget:
        parts = [kernel.budget(key, sample.alone(j)) * w for j, w in zip(separate_runs, weights, strict=True) if w]
        stored = [w * v for w, v in zip(weights, values, strict=True) if w]
        return sum(parts, kernel.budget(key, sample, summands=stored))

    expected, rows = combine(values, weights), kernel.row_map(key, sample)
    for violation in Comparison(key, x, expected, rows, allowed, baseline_name=COMBINED_NAMES[kind]).violations():
        yield kernel.with_reference_value(violation, sample)


PACKING = Property(
    "packing",
    LAWS["packing"],
    _packing,
    dtype_independent=True,
    of_the_op=_SEPARATE_SEQUENCES,
    illustration=Illustration(
        "f(S)[j] = f([S[j]]),   f′(S)[j] = f′([S[j]]),   ∂θ f(S) = Σⱼ ∂θ f([S[j]])",
        ("the pack", _PACK),
        ("one alone", "bbbbb"),
        "bugs that also occur when the sequence runs alone",
        "An output of the whole pack, such as a loss, is what its op declares: a sum, a mean over tokens or sequences, "
        "or a maximum of the values of the sequences. The gradients of a sequence are then those of it alone, times "
        "its share ([losses](new_op.md#losses-and-other-reductions)).",
    ),
)


@dataclass(frozen=True)
class _Rerun:
    """Two runs with some rows that must agree."""

    sample: Sample
    """The sample of the first run."""
    changed_sample: Sample
    """The sample of the second run."""
    results_before: Tensors
    """Results of the first run."""
    results_after: Tensors
    """Results of the second run."""
    note: str
    """The change, for the text of a violation."""
    has_budget: bool = True
    """The second sample has an error budget. With NaN, Inf or huge values it has none."""

    def compare_rows(self, kernel: KernelUnderTest, key: TensorKey, rows: slice) -> Iterator[Violation]:
        origin, changed_origin = Origin(self.sample, rows.start), Origin(self.changed_sample, rows.start)
        actual, expected = self.results_after[key][rows], self.results_before[key][rows]
        against = changed_origin if self.has_budget else None
        yield from kernel.agree(key, actual, expected, origin, against=against, other="before", note=self.note)


def _isolation(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Every kernel is tested with finite redraws, and with NaN in the slack: it is uninitialised memory in practice.

    For a kernel that promises `isolated`, the other sequences hold NaN, Inf or huge values in every second comparison.
    """
    sample = kernel.sample(case)
    before = kernel.cached_run(sample)
    if case.slack:
        note = NAN_IN_SLACK
        after = kernel.run(sample.with_slack(float("nan")), note=note)
        for key, x in after.items():
            yield from kernel.agree(key, x, before[key], Origin(sample), other="before", note=note)
    if not _has_several(case):
        return
    redrawn = kernel.sample(case.replace(seed=case.seed + 1000))
    poisons = (float("nan"), float("inf"), 1e30 if case.dtype != "float16" else 6e4) if kernel.promises.isolated else ()
    selected = _select_sequences(case, _comparable_sequences(kernel, sample, before, max), limit=2)
    for number, j in enumerate(selected, start=case.seed):
        is_poisoned = bool(poisons) and number % 2 == 1
        if is_poisoned:
            value = poisons[(number // 2 + case.n_tokens) % len(poisons)]  # another one for other cases
            changed_sample, note = sample.keep_only(j, value), f"with {value:g} in the other sequences"
        else:
            changed_sample, note = sample.keep_only(j, redrawn), "after the other sequences were redrawn"
        after = kernel.run(changed_sample, note=note)
        rerun = _Rerun(sample, changed_sample, before, after, note, has_budget=not is_poisoned)
        moves = any(largest == j != changed_sample.largest[name] for name, largest in sample.largest.items())
        for key in after:
            # a sequence with the largest value alone has gradients of a maximum
            if not kernel.is_shared(key, sample) and not (moves and key.is_gradient):
                for rows in sample.spans(j, kernel.row_map(key, sample).axes):
                    yield from rerun.compare_rows(kernel, key, rows)


def _cases_with_neighbours(space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    """Where all outputs are of the whole pack, packs of several sequences have slack: without gradients, no row of
    another sequence can be compared.
    """
    cases = [case for case in drawn_cases if case.slack or _has_several(case)]
    if not all(name in space.op.reductions for name in space.op.outputs):
        return cases
    return [case if case.slack else case.replace(slack=max(space.slack_counts[:2])) for case in cases]


ISOLATION = Property(
    "isolation",
    LAWS["isolation"],
    _isolation,
    cases=_cases_with_neighbours,
    dtype_independent=True,
    perturbs_with_nan=True,
    nothing_to_compare="no example has another sequence, or slack rows",
    of_the_op=_SEPARATE_SEQUENCES,
    illustration=Illustration(
        "f(S)[j] = f(S′)[j]   for every S′ with S′[j] = S[j], whatever the others and the slack hold",
        ("the pack", _PACK),
        ("others redrawn", "??? bbbbb ??"),
        "dependence on how long the others are: the layout stays",
        "Slack rows hold NaN here for every kernel, whatever it promises: they are uninitialised memory in practice, "
        "and hold NaN sooner or later. A kernel that takes no slack declares `slack=False`. In the sequences NaN, Inf "
        "and huge values are drawn where the kernel promises `isolated`; other kernels are tested for it too, and the "
        "result is reported without counting.",
    ),
)


def _causality(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    sample = kernel.sample(case)
    if not sample.causal or not _has_later_tokens(case):
        return
    rng = random.Random(case.seed)
    last_positions = [rng.randrange(-1, n) if n else -1 for n in case.lengths]
    redrawn = kernel.sample(case.replace(seed=case.seed + 2000))
    before = kernel.cached_run(sample)
    changed_sample, note = sample.with_later_inputs(last_positions, redrawn), "after later tokens were redrawn"
    value_rerun = _Rerun(sample, changed_sample, before, kernel.run(changed_sample, gradients=False, note=note), note)
    outputs = [TensorKey(n) for n in sample.outputs if role(sample.axes[n]) == "token"]
    for start, position in zip(sample.offsets, last_positions, strict=False):
        for key in outputs:
            yield from value_rerun.compare_rows(kernel, key, slice(start, start + position + 1))
    if not kernel.gradients:
        return
    changed_sample, note = (
        sample.with_earlier_cotangents(last_positions, redrawn),
        "after earlier incoming gradients were redrawn",
    )
    gradient_rerun = _Rerun(sample, changed_sample, before, kernel.run(changed_sample, note=note), note)
    gradients = [gradient(n) for n in sample.wrt if role(sample.axes[n]) == "token"]
    for j, position in enumerate(last_positions):
        for key in gradients:
            yield from gradient_rerun.compare_rows(kernel, key, sample.later(j, position, sample.axes[key.name]))


def _cases_with_later_tokens(_space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    return [case for case in drawn_cases if _has_later_tokens(case)]


CAUSALITY = Property(
    "causality",
    LAWS["causality"],
    _causality,
    cases=_cases_with_later_tokens,
    dtype_independent=True,
    quick=True,
    nothing_to_compare="no example has a later token that must not be seen",
    of_the_op=(
        "`causal` is True unless the op declares otherwise: where an output depends on later tokens, whatever the "
        "options, declare causal=False."
    ),
    illustration=Illustration(
        "y[≤ i] does not change with x[> i],   x′[> i] does not change with y′[≤ i]",
        ("the pack", _PACK),
        ("later redrawn", "aa? bbb?? c?"),
        "non-causal ops, for which it does not apply",
    ),
)


def _permutation(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    sample = kernel.sample(case)
    order = list(range(len(case.lengths)))
    if not _has_several(case):
        return
    random.Random(case.seed).shuffle(order)
    if order == sorted(order):
        order.reverse()
    before, permuted = kernel.cached_run(sample), sample.select(order)
    note = f"in the order {shorten(tuple(order))}"
    after = kernel.run(permuted, note=note)
    for key, x in after.items():
        if kernel.is_shared(key, sample):
            yield from kernel.agree(key, before[key], x, Origin(sample), other="permuted", note=note)
            continue
        axes = kernel.row_map(key, sample).axes
        for new, old in enumerate(order):
            for rows, permuted_rows in zip(sample.spans(old, axes), permuted.spans(new, axes), strict=True):
                origin, permuted_origin = Origin(sample, rows.start), Origin(permuted, permuted_rows.start)
                actual, expected = before[key][rows], x[permuted_rows]
                yield from kernel.agree(
                    key, actual, expected, origin, against=permuted_origin, other="permuted", note=note
                )


def _cases_with_several_sequences(_space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    return [case for case in drawn_cases if _has_several(case)]


PERMUTATION = Property(
    "permutation",
    LAWS["permutation"],
    _permutation,
    cases=_cases_with_several_sequences,
    dtype_independent=True,
    nothing_to_compare="no example has two sequences to reorder",
    of_the_op=_SEPARATE_SEQUENCES,
    illustration=Illustration(
        "f(πS) = πf(S),   ∂θ f(πS) = ∂θ f(S)   for every order π of the sequences",
        ("the pack", _PACK),
        ("reordered", "cc aaa bbbbb"),
        "bugs that occur in every order",
    ),
)


def _has_several(case: Case) -> bool:
    return len(case.lengths) > 1


def _has_later_tokens(case: Case) -> bool:
    return max(case.lengths, default=0) > 1


def _comparable_sequences(
    kernel: KernelUnderTest, sample: Sample, results: Tensors, combine: Callable[[tuple[int, int]], int]
) -> list[int]:
    """The sequences with anything to compare: all where there are states, else those with tokens.

    combine: from the numbers of queries and keys, the number of tokens to compare.
    """
    axes_of_tensors = [kernel.row_map(key, sample).axes for key in results]
    states = any(role(axes) == "sequence" or is_in_pool(axes) for axes in axes_of_tensors)
    counts = map(combine, zip(sample.lengths, sample.key_lengths or sample.lengths, strict=True))
    return [j for j, n in enumerate(counts) if n or states]


def _select_sequences(case: Case, sequences: Sequence[int], limit: int = _MOST_SEQUENCES) -> Sequence[int]:
    """At most `limit` of these sequences, chosen by the seed; always the first, the last and the longest."""
    if len(sequences) <= limit:
        return sequences
    longest = max(sequences, key=lambda j: case.lengths[j])
    selected = dict.fromkeys([sequences[0], sequences[-1], longest])
    remaining = [j for j in sequences if j not in selected]
    random.Random(case.seed).shuffle(remaining)
    return sorted([*selected, *remaining][:limit])
