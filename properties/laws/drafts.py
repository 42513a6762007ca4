"""Drafts that a server rejects: a step goes on from the state after the accepted ones, whatever the others left."""

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from packproof.base.axes import role
from packproof.properties.cases.case import Case, shorten
from packproof.properties.cases.sample import Sample
from packproof.properties.judgement.comparison import Comparison, Origin
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.violation import Violation


def check_rejected_drafts(kernel: KernelUnderTest, case: Case, sample: Sample) -> Iterator[Violation]:
    """Two runs against the plain one: with NaN in all states but the accepted one, and without the last drafts."""
    yield from _check_other_drafts(kernel, sample)
    yield from _check_accepted_alone(kernel, case, sample)


@dataclasses.dataclass(frozen=True)
class _Drafts:
    """The entries of a pool for the drafts of each request."""

    sample: Sample

    @property
    def accepted(self) -> list[int]:
        """By how many tokens of the step before each request goes on."""
        [name] = self.sample.op.integers_drawn("accepted")
        return self.sample.inputs[name].tolist()

    @property
    def count(self) -> int:
        """Drafts of a slot."""
        [name] = self.sample.op.integers_drawn("accepted")
        return self.sample.sizes[self.sample.op.draws[name].partition("|")[2]]

    def entries(self, pool: Tensor, slot: int, first: int, end: int) -> Tensor:
        """The states after drafts from `first` up to `end`, a view; of overlapping windows, all their inputs."""
        if pool.shape[1] == self.count and not self.sample.op.window:
            return pool[slot, first:end]
        width = pool.shape[-1] - self.count + 1
        return pool[slot, ..., first : (end - 1 + width if width else first)]


def _check_other_drafts(kernel: KernelUnderTest, sample: Sample) -> Iterator[Violation]:
    """The states of other drafts hold NaN. Those that the step does not write stay as they are."""
    assert kernel.op.pool is not None
    _, states, new_states = kernel.op.pool
    drafts, pool = _Drafts(sample), sample.inputs[states].clone()
    for slot, accepted in zip(sample.slots, drafts.accepted, strict=True):
        if slot >= 0:
            state = drafts.entries(pool, slot, accepted - 1, accepted).clone()
            pool[slot] = float("nan")
            drafts.entries(pool, slot, accepted - 1, accepted).copy_(state)
    note = f"with NaN in the states of rejected drafts; accepted are {shorten(tuple(drafts.accepted))}"
    before = kernel.cached_run(sample)
    after = kernel.run(dataclasses.replace(sample, inputs={**sample.inputs, states: pool}), note=note)
    for key, x in after.items():
        if key.name != new_states:
            yield from kernel.agree(key, x, before[key], Origin(sample), other="before", note=note)
            continue
        expected = pool.clone()
        for slot, length in zip(sample.slots, sample.lengths, strict=True):
            if slot >= 0 and length:
                written = min(length, drafts.count)
                drafts.entries(expected, slot, 0, written).copy_(drafts.entries(x, slot, 0, written))
                actual = _with_entries(before[key], drafts, slot, written, x)
                origin = Origin(sample, slot)
                yield from kernel.agree(key, actual, before[key][slot : slot + 1], origin, other="before", note=note)
        rows = kernel.row_map(key, sample)
        kept = f"no draft of the step has this state; {note}"
        yield from Comparison(key, x, expected, rows, baseline_name="before", note=kept).violations()


def _check_accepted_alone(kernel: KernelUnderTest, case: Case, sample: Sample) -> Iterator[Violation]:
    """The first drafts of each request alone: their outputs and states are those of the step with all drafts."""
    assert kernel.op.pool is not None
    _, _, new_states = kernel.op.pool
    drafts, rng = _Drafts(sample), random.Random(case.seed)
    counts = []
    for length in sample.lengths:
        choices = [n for n in range(1, min(length, drafts.count + 1)) if kernel.domain.allows_length(n)]
        counts.append(rng.choice(choices) if choices else length)
    if tuple(counts) == sample.lengths:
        return
    note = f"with all drafts; before the first {shorten(tuple(counts))} of each request alone"
    accepted = sample.piece([(j, 0, count) for j, count in enumerate(counts)])
    before, after = kernel.run(accepted, note=note), kernel.cached_run(sample)
    for key, x in after.items():
        for j, (slot, count) in enumerate(zip(sample.slots, counts, strict=True)):
            if key.name == new_states and slot >= 0 and count:
                written = min(count, drafts.count)
                actual, baseline = _with_entries(before[key], drafts, slot, written, x), before[key][slot : slot + 1]
                origin, accepted_origin = Origin(sample, slot), Origin(accepted, slot)
            elif role(sample.axes[key.name]) == "token":
                start, accepted_start = sample.offsets[j], accepted.offsets[j]
                actual, baseline = x[start : start + count], before[key][accepted_start : accepted_start + count]
                origin, accepted_origin = Origin(sample, start), Origin(accepted, accepted_start)
            else:
                continue
            options: Any = {"against": accepted_origin, "other": "before", "note": note, "exact": False}
            yield from kernel.agree(key, actual, baseline, origin, **options)


def _with_entries(pool: Tensor, drafts: _Drafts, slot: int, count: int, source: Tensor) -> Tensor:
    """(1, ...): a slot of the pool, with the first entries from `source`."""
    changed = pool.clone()
    drafts.entries(changed, slot, 0, count).copy_(drafts.entries(source, slot, 0, count))
    return changed[slot : slot + 1]
