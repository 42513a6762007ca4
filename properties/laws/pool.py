"""The pool property: a step of a server changes the slots of its requests, each as if it were alone, and no others."""

import dataclasses
import random
from collections.abc import Collection, Iterator

from packproof.base.axes import SLOTS, role
from packproof.base.law_names import LAWS
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.result_tensors import Tensors
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space
from packproof.properties.judgement.comparison import Comparison, Origin
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.drafts import check_rejected_drafts
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.laws.state_passing import compare_carried_runs, compare_in_pieces
from packproof.properties.laws.violation import Violation

_MOST_STEPS = 6  # tokens of the longest sequence that is run step by step
_MORE_SLOTS = 3
_PADDED_REQUESTS = 4  # the first requests, each followed by a padding copy


def _pool(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Zeros and unused slots are compared bit for bit, since they do not depend on rounding. Runs are compared as by
    other properties.

    In one run the slots of no request hold NaN, as unused memory may.
    """
    if kernel.op.pool is None:
        return
    sample = kernel.sample(case)
    before = kernel.cached_run(sample)
    yield from _check_unused_slots(kernel, sample, before)
    yield from _check_moved_slots(kernel, sample, before)
    with kernel.optional("with requests put in that have no slot"):
        yield from _check_padding(kernel, sample, before)
    if kernel.op.keeps_drafts:
        yield from check_rejected_drafts(kernel, case, sample)
        return
    if _is_divisible(kernel.domain, case):
        yield from compare_carried_runs(kernel, case, sample, kernel.op.pool[1])
    longest = max(case.lengths, default=0)
    if 1 < longest <= _MOST_STEPS and kernel.domain.allows_length(0) and kernel.domain.allows_length(1):
        steps = [[(min(k, n), min(k + 1, n)) for n in case.lengths] for k in range(longest)]
        yield from compare_in_pieces(kernel, sample, steps, exact=False)


def _is_divisible(domain: Domain, case: Case) -> bool:
    """Whether each request can be cut into two parts of allowed lengths."""
    return domain.allows_length(0) or all(
        any(domain.allows_length(k) and domain.allows_length(n - k) for k in range(1, n)) for n in case.lengths
    )


def _check_unused_slots(
    kernel: KernelUnderTest, sample: Sample, results: Tensors, note: str = ""
) -> Iterator[Violation]:
    """Tokens of requests without a slot give zeros. Slots of no request with tokens keep their states."""
    states_before = {after: before for before, after in kernel.op.pools}
    counts = [1] * len(sample.slots) if kernel.op.slots_of_tokens else sample.lengths
    active_slots = [slot for slot, n in zip(sample.slots, counts, strict=True) if n and slot >= 0]
    for key, x in results.items():
        rows, expected = kernel.row_map(key, sample), x.clone()
        if key.name in states_before:
            expected = sample.inputs[states_before[key.name]].clone()
            expected[active_slots] = x[active_slots]
            yield from Comparison(key, x, expected, rows, baseline_name="before", note=note or _NO_REQUEST).violations()
        elif role(rows.axes) == "token" and not kernel.op.slots_of_tokens:
            for j in _requests_without_slot(sample):
                expected[sample.rows(j, rows.axes)] = 0
            yield from Comparison(key, x, expected, rows, baseline_name="expected", note=note or _NO_SLOT).violations()


_NO_REQUEST = "no request of the step with tokens has this slot"
_NO_SLOT = "the request has no slot: its index is -1"


def _requests_without_slot(sample: Sample) -> list[int]:
    return [j for j, slot in enumerate(sample.slots) if slot < 0]


def _check_moved_slots(kernel: KernelUnderTest, sample: Sample, before: Tensors) -> Iterator[Violation]:
    """The same states in other slots of a larger pool. All remaining slots hold NaN."""
    slots = sample.sizes[SLOTS]
    new_slots = random.Random(slots).sample(
        range(slots + _MORE_SLOTS), slots
    )  # by slot, the new slot in the larger pool
    moved_sample = sample.in_slots([new_slots[slot] if slot >= 0 else -1 for slot in sample.slots])
    used_slots = [slot for slot in sample.slots if slot >= 0]
    pools = {}
    for name, _ in kernel.op.pools:
        states = sample.inputs[name]
        pools[name] = states.new_full((slots + _MORE_SLOTS, *states.shape[1:]), float("nan"))
        pools[name][[new_slots[slot] for slot in used_slots]] = states[used_slots]
    sizes = {**moved_sample.sizes, SLOTS: slots + _MORE_SLOTS}
    moved_sample = dataclasses.replace(moved_sample, inputs={**moved_sample.inputs, **pools}, sizes=sizes)
    note = f"in slots {moved_sample.slots[:8]} of {slots + _MORE_SLOTS}, the others NaN; before in {sample.slots[:8]}"
    after = kernel.run(moved_sample, note=note)
    for key, x in after.items():
        actual = x
        if key.name in {after for _, after in kernel.op.pools}:
            actual = before[key].clone()
            actual[used_slots] = x[[new_slots[slot] for slot in used_slots]]
        yield from kernel.agree(key, actual, before[key], Origin(sample), other="before", note=note)
    yield from _check_unused_slots(kernel, moved_sample, after, note)


def _check_padding(kernel: KernelUnderTest, sample: Sample, before: Tensors) -> Iterator[Violation]:
    """Each of the first requests is followed by a copy of its tokens without a slot."""
    n = len(sample.lengths)
    order = [j for j in range(n) for _ in range(2 if j < _PADDED_REQUESTS else 1)]
    original_positions = [order.index(j) for j in range(n)]
    slots = []
    for position, j in enumerate(order):
        entries = sample.offsets[j : j + 2] if kernel.op.slots_of_tokens else (j, j + 1)
        own_slots = sample.slots[slice(*entries)]
        slots += own_slots if position in original_positions else [-1] * len(own_slots)
    padded = sample.select(order).in_slots(slots)
    note = f"with requests put in that have no slot: {slots[:8]}"
    after = kernel.run(padded, note=note)
    for key, x in after.items():
        axes = kernel.row_map(key, sample).axes
        for j, position in enumerate(original_positions):
            for rows, padded_rows in zip(sample.spans(j, axes), padded.spans(position, axes), strict=True):
                origin, padded_origin = Origin(sample, rows.start), Origin(padded, padded_rows.start)
                yield from kernel.agree(
                    key, x[padded_rows], before[key][rows], origin, against=padded_origin, other="before", note=note
                )
    yield from _check_unused_slots(kernel, padded, after, note)


def _cases_with_pool(space: Space, drawn_cases: Collection[Case]) -> list[Case]:
    return list(drawn_cases) if space.op.pool else []


def _pool_skip_reason(space: Space) -> str:
    return "" if space.op.pool else f"{space.op.name} has no pool of states"


POOL = Property(
    "pool",
    LAWS["pool"],
    _pool,
    cases=_cases_with_pool,
    skip_reason=_pool_skip_reason,
    dtype_independent=True,
    of_the_op=(
        "The op declares `pool`: where a request cannot be cut at any token and go on from its slot alone, leave that "
        "out, and give each sequence a row of the states (axis s). An integer that counts for the first piece alone is "
        "drawn as 'once|' and an axis."
    ),
    illustration=Illustration(
        "f(S, h)[j] = f([S[j]], h[slot j]);   h′ = h in the slots of no request;   f(S) = f(S[:i]) ‖ f(S[i:], h′)",
        ("a step", "aaa bbbbb cc"),
        ("padded, in other slots", "aaa aaa bbbbb bbbbb cc"),
        "two requests of a step that have one slot: no call may",
    ),
)
