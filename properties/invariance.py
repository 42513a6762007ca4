"""Properties of the pack: a sequence computes what it would alone, wherever it lies and whatever lies beside it.

Packing-unpacking invariance is f(S) = unpack(f(pack(S))) (Xu et al. 2024, section 3.1), for values and gradients.
"""

import random
from collections.abc import Iterator

from packproof.properties.case import Case, shorten
from packproof.properties.kernel_under_test import KernelUnderTest, Tensors
from packproof.properties.oracle import gradient
from packproof.properties.sample import Sample, total
from packproof.properties.violation import Violation, within
from packproof.refs.axes import role

_MOST_SEQUENCES = 6


def reference(subject: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Values and gradients lie within the error budget of the float64 reference, element by element."""
    sample = subject.sample(case)
    got, want = subject.remembered(sample), subject.expect(sample)
    for name, x in got.items():
        frame = subject.frame(name, sample)
        yield from within(name, x, want.values[name], want.budgets[name], frame)


def packing(subject: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """A sequence computes in the pack what it computes alone; shared gradients are the sum over the sequences.

    An empty one has nothing to compare but its states: whether a pack of nothing works is for `metadata` to say.
    """
    sample = subject.sample(case)
    packed = subject.remembered(sample)
    every = len(case.lengths) <= 2 * _MOST_SEQUENCES
    states = any(role(subject.frame(name, sample).axes) == "sequence" for name in packed)
    chosen = [j for j in (range(len(case.lengths)) if every else _some(case)) if case.lengths[j] or states]
    alone = {j: subject.remembered(sample.alone(j)) for j in chosen}
    for name, x in packed.items():
        if not subject.shared(name, sample):
            for j, run in alone.items():
                rows = sample.rows(j, subject.frame(name, sample).axes)
                there = (sample.alone(j), 0)
                yield from subject.agree(
                    name, x[rows], run[name], sample, start=rows.start, against=there, other="alone"
                )
        elif every and alone:
            summed = total(run[name] for run in alone.values())
            yield from subject.agree(name, x, summed, sample, other="sum over the sequences")


def isolation(subject: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """What the other sequences and the slack hold (inputs, states, incoming gradients) changes nothing in this one.

    Finite redraws for every kernel; NaN in the slack for every kernel, since it is uninitialised memory in practice.
    Where the kernel promises to be isolated from NaN, Inf and huge values, the others hold these for every second
    sequence that is looked at.
    """
    sample = subject.sample(case)
    before = subject.remembered(sample)
    if case.slack:
        poisoned, note = sample.with_slack(float("nan")), "with NaN in the slack"
        after = subject.run(poisoned, note=note)
        for name, x in after.items():
            yield from subject.agree(name, x, before[name], sample, other="before", note=note)
    if len(case.lengths) < 2:
        return
    redrawn = subject.sample(case.replace(seed=case.seed + 1000))
    poisons = (
        (float("nan"), float("inf"), 1e30 if case.dtype != "float16" else 6e4) if subject.promises.isolated else ()
    )
    for turn, j in enumerate(_some(case, most=2), start=case.seed):
        if poisons and turn % 2:
            value = poisons[(turn // 2 + case.n_tokens) % len(poisons)]
            changed = sample.keep_only(j, value)
            yield from _unchanged(subject, sample, changed, j, f"with {value:g} in the other sequences")
        else:
            changed = sample.keep_only(j, redrawn)
            note = "after the other sequences were redrawn"
            yield from _unchanged(subject, sample, changed, j, note, against=changed)


def _unchanged(
    subject: KernelUnderTest, sample: Sample, changed: Sample, j: int, note: str, against: Sample | None = None
) -> Iterator[Violation]:
    """Sequence j is in `changed` as in the sample. against: `changed`, unless it holds values without a budget."""
    before, after = subject.remembered(sample), subject.run(changed, note=note)
    for name, x in after.items():
        if not subject.shared(name, sample):
            rows = sample.rows(j, subject.frame(name, sample).axes)
            there = None if against is None else (against, rows.start)
            got, want = x[rows], before[name][rows]
            yield from subject.agree(
                name, got, want, sample, start=rows.start, against=there, other="before", note=note
            )


def permutation(subject: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Reordering the sequences reorders the results; shared gradients stay within the budget."""
    sample = subject.sample(case)
    order = list(range(len(case.lengths)))
    if len(order) < 2:
        return
    random.Random(case.seed).shuffle(order)
    if order == sorted(order):
        order.reverse()
    before, moved = subject.remembered(sample), sample.select(order)
    note = f"in the order {shorten(tuple(order))}"
    after = subject.run(moved, note=note)
    for name, x in after.items():
        if subject.shared(name, sample):
            yield from subject.agree(name, before[name], x, sample, other="permuted", note=note)
            continue
        axes = subject.frame(name, sample).axes
        for new, old in enumerate(order):
            rows = sample.rows(old, axes)
            now = moved.rows(new, axes)
            got, want, there = before[name][rows], x[now], (moved, now.start)
            yield from subject.agree(
                name, got, want, sample, start=rows.start, against=there, other="permuted", note=note
            )


def causality(subject: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Later tokens change no earlier output, and earlier incoming gradients no later token's gradient."""
    sample = subject.sample(case)
    if not sample.causal or max(case.lengths, default=0) < 2:
        return
    rng = random.Random(case.seed)
    last = [rng.randrange(-1, n) if n else -1 for n in case.lengths]
    redrawn = subject.sample(case.replace(seed=case.seed + 2000))
    before = subject.remembered(sample)
    changed = sample.after(last, redrawn, inputs=True)
    note = "after later tokens were redrawn"
    after = subject.run(changed, gradients=False, note=note)
    names = [n for n in sample.outputs if role(sample.axes[n]) == "token"]
    starts = sample.offsets
    for j, p in enumerate(last):
        span = slice(starts[j], starts[j] + p + 1)
        yield from _same(subject, sample, changed, names, before, after, span, note)
    if not subject.gradients:
        return
    changed = sample.after(last, redrawn, inputs=False)
    note = "after earlier incoming gradients were redrawn"
    after = subject.run(changed, note=note)
    names = [gradient(n) for n in sample.wrt if role(sample.axes[n]) == "token"]
    for j, p in enumerate(last):
        span = slice(starts[j] + p + 1, starts[j + 1])
        yield from _same(subject, sample, changed, names, before, after, span, note)


def _same(
    subject: KernelUnderTest,
    sample: Sample,
    changed: Sample,
    names: list[str],
    before: Tensors,
    after: Tensors,
    span: slice,
    note: str,
) -> Iterator[Violation]:
    for name in names:
        got, want, there = after[name][span], before[name][span], (changed, span.start)
        yield from subject.agree(name, got, want, sample, start=span.start, against=there, other="before", note=note)


def _some(case: Case, most: int = _MOST_SEQUENCES) -> list[int]:
    """Some sequences, the first, the last and the longest among them, as the seed says."""
    n = len(case.lengths)
    if n <= most:
        return list(range(n))
    longest = max(range(n), key=lambda j: case.lengths[j])
    chosen = dict.fromkeys([0, n - 1, longest])
    rest = [j for j in range(n) if j not in chosen]
    random.Random(case.seed).shuffle(rest)
    return sorted([*chosen, *rest][:most])
