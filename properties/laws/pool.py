"""The pool property: a step of a server changes the slots of its requests, each as if it were alone, and no others."""

import dataclasses
import random
from collections.abc import Collection, Iterator

import torch

from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space
from packproof.properties.comparison import Comparison
from packproof.properties.kernel_under_test import KernelUnderTest, Origin, Tensors
from packproof.properties.laws.names import LAWS
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.laws.state_passing import compare, in_pieces
from packproof.properties.violation import Violation
from packproof.refs.axes import SLOTS, role

_MOST_STEPS = 6  # tokens of the longest sequence that is run step by step
_MORE_SLOTS = 3
_COPIED = 4  # the first requests, each followed by a padding copy


def _pool(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    """Zeros and unused slots are compared bit for bit, since they do not depend on rounding. Runs are compared as by
    other properties.

    In one run the slots of no request hold NaN, as unused memory may.
    """
    if kernel.op.pool is None:
        return
    sample = kernel.sample(case)
    before = kernel.remembered(sample)
    yield from _left_alone(kernel, sample, before)
    yield from _in_other_slots(kernel, sample, before)
    with kernel.optional("with requests put in that have no slot"):
        yield from _beside_padding(kernel, sample, before)
    if _divisible(kernel.domain, case):
        yield from in_pieces(kernel, case, sample, kernel.op.pool[1])
    longest = max(case.lengths, default=0)
    if 1 < longest <= _MOST_STEPS and kernel.domain.allows_length(0) and kernel.domain.allows_length(1):
        steps = [[(min(k, n), min(k + 1, n)) for n in case.lengths] for k in range(longest)]
        yield from compare(kernel, sample, steps, exact=False)


def _divisible(domain: Domain, case: Case) -> bool:
    """Whether each request can be cut into two parts of allowed lengths."""
    return domain.allows_length(0) or all(
        any(domain.allows_length(k) and domain.allows_length(n - k) for k in range(1, n)) for n in case.lengths
    )


def _left_alone(kernel: KernelUnderTest, sample: Sample, after: Tensors, note: str = "") -> Iterator[Violation]:
    """Tokens of requests without a slot give zeros. Slots of no request with tokens keep their states."""
    assert kernel.op.pool is not None
    _, states, new_states = kernel.op.pool
    changed = [slot for slot, n in zip(sample.slots, sample.lengths, strict=True) if n and slot >= 0]
    for key, x in after.items():
        rows, wanted = kernel.row_map(key, sample), x.clone()
        if key.name == new_states:
            wanted = sample.inputs[states].clone()
            wanted[changed] = x[changed]
            yield from Comparison(key, x, wanted, rows, other="before", note=note or _NO_REQUEST).violations()
        elif role(rows.axes) == "token":
            for j in _without_slot(sample):
                wanted[sample.rows(j, rows.axes)] = 0
            yield from Comparison(key, x, wanted, rows, other="expected", note=note or _NO_SLOT).violations()


_NO_REQUEST = "no request of the step with tokens has this slot"
_NO_SLOT = "the request has no slot: its index is -1"


def _without_slot(sample: Sample) -> list[int]:
    return [j for j, slot in enumerate(sample.slots) if slot < 0]


def _in_other_slots(kernel: KernelUnderTest, sample: Sample, before: Tensors) -> Iterator[Violation]:
    """The same states in other slots of a larger pool. All remaining slots hold NaN."""
    assert kernel.op.pool is not None
    _, states, new_states = kernel.op.pool
    slots = sample.sizes[SLOTS]
    places = random.Random(slots).sample(range(slots + _MORE_SLOTS), slots)  # by slot, the new slot in the larger pool
    moved = sample.in_slots([places[slot] if slot >= 0 else -1 for slot in sample.slots])
    pool = torch.full((slots + _MORE_SLOTS, *sample.inputs[states].shape[1:]), float("nan"))
    pool = pool.to(sample.inputs[states].dtype)
    held = [slot for slot in sample.slots if slot >= 0]
    pool[[places[slot] for slot in held]] = sample.inputs[states][held]
    sizes = {**moved.sizes, SLOTS: slots + _MORE_SLOTS}
    moved = dataclasses.replace(moved, inputs={**moved.inputs, states: pool}, sizes=sizes)
    note = f"in slots {moved.slots[:8]} of {slots + _MORE_SLOTS}, the others NaN; before in {sample.slots[:8]}"
    after = kernel.run(moved, note=note)
    for key, x in after.items():
        got = x
        if key.name == new_states:
            got = before[key].clone()
            got[held] = x[[places[slot] for slot in held]]
        yield from kernel.agree(key, got, before[key], Origin(sample), other="before", note=note)
    yield from _left_alone(kernel, moved, after, note)


def _beside_padding(kernel: KernelUnderTest, sample: Sample, before: Tensors) -> Iterator[Violation]:
    """Each of the first requests is followed by a copy of its tokens without a slot."""
    n = len(sample.lengths)
    order = [j for j in range(n) for _ in range(2 if j < _COPIED else 1)]
    own = [order.index(j) for j in range(n)]
    slots = [sample.slots[j] if at in own else -1 for at, j in enumerate(order)]
    padded = sample.select(order).in_slots(slots)
    note = f"with requests put in that have no slot: {slots[:8]}"
    after = kernel.run(padded, note=note)
    for key, x in after.items():
        axes = kernel.row_map(key, sample).axes
        for j, at in enumerate(own):
            rows, now = sample.rows(j, axes), padded.rows(at, axes)
            here, there = Origin(sample, rows.start), Origin(padded, now.start)
            yield from kernel.agree(key, x[now], before[key][rows], here, against=there, other="before", note=note)
    yield from _left_alone(kernel, padded, after, note)


def _with_pool(space: Space, drawn: Collection[Case]) -> list[Case]:
    return list(drawn) if space.op.pool else []


def _no_pool(space: Space) -> str:
    return "" if space.op.pool else f"{space.op.name} has no pool of states"


POOL = Property(
    "pool",
    LAWS["pool"],
    _pool,
    cases=_with_pool,
    skip_reason=_no_pool,
    dtype_independent=True,
    of_the_op=(
        "The op declares `pool`: where a request cannot be cut at any token and go on from its slot alone, leave that "
        "out, and give each sequence a row of the states (axis s)."
    ),
    illustration=Illustration(
        "f(S, h)[j] = f([S[j]], h[slot j]);   h′ = h in the slots of no request;   f(S) = f(S[:i]) ‖ f(S[i:], h′)",
        ("a step", "aaa bbbbb cc"),
        ("padded, in other slots", "aaa aaa bbbbb bbbbb cc"),
        "two requests of a step that have one slot: no call may",
    ),
)
