"""Properties of the pack: a sequence computes the same as alone, at any place and beside any other sequences.

Packing-unpacking invariance is f(S) = unpack(f(pack(S))) (Xu et al. 2024, section 3.1), for values and gradients.
"""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from packproof.properties.cases.case import Case, shorten
from packproof.properties.cases.sample import Sample, total
from packproof.properties.cases.space import CROWD, Space, golden_case
from packproof.properties.comparison import Comparison
from packproof.properties.kernel_under_test import KernelUnderTest, Origin, Tensors
from packproof.properties.laws.names import LAWS
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.tensor_key import TensorKey, gradient
from packproof.properties.violation import Violation
from packproof.refs.axes import in_pool, role

_MOST_SEQUENCES = 6
_PACK = "aaa bbbbb cc"
_APART = "The reference has to compute each sequence by itself, as `split_sequences` and `join_sequences` help to do."


def _reference(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    yield from against_reference(kernel, kernel.sample(case))


def against_reference(kernel: KernelUnderTest, sample: Sample) -> Iterator[Violation]:
    """The violations of `reference` at one sample."""
    got, want = kernel.remembered(sample), kernel.expect(sample)
    for key, x in got.items():
        rows = kernel.row_map(key, sample)
        yield from Comparison(key, x, want.values[key], rows, want.budgets[key]).violations()


def _with_long_sums(space: Space, drawn: Collection[Case]) -> list[Case]:
    """The drawn cases; on a GPU, for gradients that are sums, also a pack of thousands of tokens."""
    sizes = space.plain_sizes[:1] if space.on_gpu and space.sums else ()
    return [*drawn, *(golden_case(space, 0, CROWD, size, rich=True) for size in sizes)]


REFERENCE = Property(
    "reference",
    LAWS["reference"],
    _reference,
    cases=_with_long_sums,
    shares="reference",
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
    packed = kernel.remembered(sample)
    every = len(case.lengths) <= 2 * _MOST_SEQUENCES
    comparable = _comparable(kernel, sample, packed, min)
    chosen = comparable if every else _some(case, comparable)
    sees_nothing = any(n and j not in chosen for j, n in enumerate(case.lengths))
    parts = {j: sample.alone(j) for j in chosen}
    alone = {j: kernel.remembered(part) for j, part in parts.items()}
    for key, x in packed.items():
        if not kernel.shared(key, sample):
            for j, run in alone.items():
                axes = kernel.row_map(key, sample).axes
                rows, own = sample.rows(j, axes), parts[j].rows(0, axes)
                here, there = Origin(sample, rows.start), Origin(parts[j], own.start)
                yield from kernel.agree(key, x[rows], run[key][own], here, against=there, other="alone")
        elif every and alone and not sees_nothing:  # queries not run alone add to a sink's gradient too
            summands = [run[key] for run in alone.values()]
            yield from kernel.agree(
                key, x, total(summands), Origin(sample), other="sum over the sequences", summands=summands
            )


PACKING = Property(
    "packing",
    LAWS["packing"],
    _packing,
    dtype_independent=True,
    of_the_op=_APART,
    illustration=Illustration(
        "f(S)[j] = f([S[j]]),   f′(S)[j] = f′([S[j]]),   ∂θ f(S) = Σⱼ ∂θ f([S[j]])",
        ("the pack", _PACK),
        ("one alone", "bbbbb"),
        "bugs that also occur when the sequence runs alone",
    ),
)


@dataclass(frozen=True)
class _Rerun:
    """Two runs with some rows that must agree."""

    sample: Sample
    """The sample of the first run."""
    changed: Sample
    """The sample of the second run."""
    before: Tensors
    """Results of the first run."""
    after: Tensors
    """Results of the second run."""
    note: str
    """The change, for the text of a violation."""
    budgeted: bool = True
    """The second sample has an error budget. With NaN, Inf or huge values it has none."""

    def agrees(self, kernel: KernelUnderTest, key: TensorKey, rows: slice) -> Iterator[Violation]:
        here, there = Origin(self.sample, rows.start), Origin(self.changed, rows.start)
        got, want = self.after[key][rows], self.before[key][rows]
        against = there if self.budgeted else None
        yield from kernel.agree(key, got, want, here, against=against, other="before", note=self.note)


def _isolation(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Every kernel is tested with finite redraws, and with NaN in the slack: it is uninitialised memory in practice.

    For a kernel that promises `isolated`, the other sequences hold NaN, Inf or huge values in every second comparison.
    """
    sample = kernel.sample(case)
    before = kernel.remembered(sample)
    if case.slack:
        note = "with NaN in the slack"
        after = kernel.run(sample.with_slack(float("nan")), note=note)
        for key, x in after.items():
            yield from kernel.agree(key, x, before[key], Origin(sample), other="before", note=note)
    if not _has_several(case):
        return
    redrawn = kernel.sample(case.replace(seed=case.seed + 1000))
    poisons = (float("nan"), float("inf"), 1e30 if case.dtype != "float16" else 6e4) if kernel.promises.isolated else ()
    chosen = _some(case, _comparable(kernel, sample, before, max), most=2)
    for number, j in enumerate(chosen, start=case.seed):
        wild = bool(poisons) and number % 2 == 1
        if wild:
            value = poisons[(number // 2 + case.n_tokens) % len(poisons)]  # another one for other cases
            changed, note = sample.keep_only(j, value), f"with {value:g} in the other sequences"
        else:
            changed, note = sample.keep_only(j, redrawn), "after the other sequences were redrawn"
        after = kernel.run(changed, note=note)
        rerun = _Rerun(sample, changed, before, after, note, budgeted=not wild)
        for key in after:
            if not kernel.shared(key, sample):
                yield from rerun.agrees(kernel, key, sample.rows(j, kernel.row_map(key, sample).axes))


def _with_others(_space: Space, drawn: Collection[Case]) -> list[Case]:
    return [case for case in drawn if case.slack or _has_several(case)]


ISOLATION = Property(
    "isolation",
    LAWS["isolation"],
    _isolation,
    cases=_with_others,
    dtype_independent=True,
    perturbs_with_nan=True,
    nothing_to_compare="no example has another sequence, or slack rows",
    of_the_op=_APART,
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
    last = [rng.randrange(-1, n) if n else -1 for n in case.lengths]
    redrawn = kernel.sample(case.replace(seed=case.seed + 2000))
    before = kernel.remembered(sample)
    changed, note = sample.with_later_inputs(last, redrawn), "after later tokens were redrawn"
    values = _Rerun(sample, changed, before, kernel.run(changed, gradients=False, note=note), note)
    outputs = [TensorKey(n) for n in sample.outputs if role(sample.axes[n]) == "token"]
    for start, p in zip(sample.offsets, last, strict=False):
        for key in outputs:
            yield from values.agrees(kernel, key, slice(start, start + p + 1))
    if not kernel.gradients:
        return
    changed, note = sample.with_earlier_cotangents(last, redrawn), "after earlier incoming gradients were redrawn"
    derivatives = _Rerun(sample, changed, before, kernel.run(changed, note=note), note)
    gradients = [gradient(n) for n in sample.wrt if role(sample.axes[n]) == "token"]
    for j, p in enumerate(last):
        for key in gradients:
            yield from derivatives.agrees(kernel, key, sample.later(j, p, sample.axes[key.name]))


def _with_later_tokens(_space: Space, drawn: Collection[Case]) -> list[Case]:
    return [case for case in drawn if _has_later_tokens(case)]


CAUSALITY = Property(
    "causality",
    LAWS["causality"],
    _causality,
    cases=_with_later_tokens,
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
    before, moved = kernel.remembered(sample), sample.select(order)
    note = f"in the order {shorten(tuple(order))}"
    after = kernel.run(moved, note=note)
    for key, x in after.items():
        if kernel.shared(key, sample):
            yield from kernel.agree(key, before[key], x, Origin(sample), other="permuted", note=note)
            continue
        axes = kernel.row_map(key, sample).axes
        for new, old in enumerate(order):
            rows, now = sample.rows(old, axes), moved.rows(new, axes)
            here, there = Origin(sample, rows.start), Origin(moved, now.start)
            got, want = before[key][rows], x[now]
            yield from kernel.agree(key, got, want, here, against=there, other="permuted", note=note)


def _with_several(_space: Space, drawn: Collection[Case]) -> list[Case]:
    return [case for case in drawn if _has_several(case)]


PERMUTATION = Property(
    "permutation",
    LAWS["permutation"],
    _permutation,
    cases=_with_several,
    dtype_independent=True,
    nothing_to_compare="no example has two sequences to reorder",
    of_the_op=_APART,
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


def _comparable(
    kernel: KernelUnderTest, sample: Sample, found: Tensors, of_both: Callable[[tuple[int, int]], int]
) -> list[int]:
    """The sequences with anything to compare: all where there are states, else those with tokens.

    combine: from the numbers of queries and keys, the number of tokens to compare.
    """
    kinds = [kernel.row_map(key, sample).axes for key in found]
    states = any(role(axes) == "sequence" or in_pool(axes) for axes in kinds)
    counts = map(of_both, zip(sample.lengths, sample.key_lengths or sample.lengths, strict=True))
    return [j for j, n in enumerate(counts) if n or states]


def _some(case: Case, among: Sequence[int], most: int = _MOST_SEQUENCES) -> Sequence[int]:
    """At most `limit` of these sequences, chosen by the seed; always the first, the last and the longest."""
    if len(among) <= most:
        return among
    longest = max(among, key=lambda j: case.lengths[j])
    chosen = dict.fromkeys([among[0], among[-1], longest])
    rest = [j for j in among if j not in chosen]
    random.Random(case.seed).shuffle(rest)
    return sorted([*chosen, *rest][:most])
