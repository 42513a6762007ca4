"""The property size on a CPU, with limits so small that packs go past them. Its real ones: test_vacuity_on_gpu.py."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.harness.check.unit import slow_calls_until
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.report.coverage import Coverage
from packproof.properties.calling.call import Call, MachineLimit, OutsideDomain, Refusal, Result, TooSlow
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.large_calls import Limits
from packproof.properties.laws.size import size_property
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import OPS
from packproof.properties.ops.losses import LOSSES
from tests.sweeps import sweep

PROMISES = Promises(chunk=16)
MOST_TOKENS, MOST_SEQUENCES, MOST_ELEMENTS = 700, 9, (2**16, 2**15)


LIMITS = Limits(sequences=MOST_SEQUENCES, tokens=MOST_TOKENS, history=800, elements=MOST_ELEMENTS)
SIZE = size_property(LIMITS)


class Small(InProcess):
    """Rows that are far apart are so by less."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function, offset_reach={"beyond 2^31": 2**12, "beyond 2^32": 2**13})


def judged(function: Callable[..., object], op: str, runner: type[Small] = Small) -> Iterator[Violation]:
    """The first violation of each case."""
    space = Space(OPS[op], "float32", PROMISES, on_gpu=True)
    for case in SIZE.suited(space, list(golden_cases(space))):
        kernel = KernelUnderTest(OPS[op], runner(function), PROMISES)
        yield from list(SIZE.check(kernel, case))[:1]


@sweep(
    "op",
    ["causal_conv1d", "cross_entropy"],
    ["rope", *(op.name for op in LOSSES if op.name != "cross_entropy")],
)
def test_references_pass(op: str) -> None:
    assert list(judged(getattr(refs, op), op)) == []


def off(where: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., object]:
    """A convolution that adds one to the rows that `where` chooses, by x and the sequence of each token."""

    def conv(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, **others: Any) -> object:
        ids = torch.searchsorted(cu_seqlens, torch.arange(len(x)), right=True) - 1
        y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens, **others)
        wrong = where(x, ids)[:, None]
        return (y[0] + wrong, y[1]) if isinstance(y, tuple) else y + wrong

    return conv


@pytest.mark.parametrize(
    ("where", "note"),
    [
        (lambda x, ids: (ids < 5) & (ids.max() > 8), "copy 1 of the pack, repeated"),
        (lambda x, ids: torch.arange(len(x)) >= MOST_TOKENS, "past 9 sequences and 65,535 chunks"),
        (
            lambda x, ids: torch.arange(len(x)) * x.shape[1] >= MOST_ELEMENTS[0],
            "past 2^16 elements of a token's tensor",
        ),
        (lambda x, ids: torch.full((len(x),), int(x.stride(0)) > 8) & (x.shape[1] < 8), "rows of x beyond 2^31"),
        (
            lambda x, ids: (torch.arange(len(x)) > MOST_TOKENS) & (ids == 0),
            "after 800 tokens of zeros",
        ),
    ],
    ids=["one copy", "tokens", "elements", "rows far apart", "one long sequence"],
)
def test_each_limit_is_found(where: Callable[[Tensor, Tensor], Tensor], note: str) -> None:
    assert any(note in violation.note for violation in judged(off(where), "causal_conv1d"))


_COPIES = "the last, repeated 2 times, past 9 sequences and 65,535 chunks of 256 tokens"


@pytest.mark.parametrize(
    ("change", "notes"),
    [
        ("", [f"with rows of x beyond 2^{n} elements" for n in (31, 32)] + [_COPIES, "after 800 tokens of zeros"]),
        (_COPIES, [_COPIES]),
        ("with rows of x beyond 2^31 elements", ["with rows of x beyond 2^31 elements"]),
        ("with rows of weight beyond 2^31 elements", None),
        ("with rows of the incoming gradient of y beyond 2^31 elements", []),
    ],
    ids=["all", "copies", "rows far apart", "a part that it has not", "a part that holds"],
)
def test_a_replay_asks_for_the_part_that_failed_alone(change: str, notes: list[str] | None) -> None:
    """Of a kernel that two parts fail."""
    op, wrong = OPS["causal_conv1d"], off(lambda x, _: torch.full((len(x),), len(x) > MOST_TOKENS or x.stride(0) > 8))
    space = Space(op, "float32", PROMISES, on_gpu=True)
    case = SIZE.suited(space, list(golden_cases(space)))[0]
    kernel = KernelUnderTest(op, Small(wrong), PROMISES, change=change)
    if notes is None:
        with pytest.raises(OutsideDomain, match=f"no such part at this case: {re.escape(change)}"):
            list(SIZE.check(kernel, case))
    else:
        assert [violation.note for violation in SIZE.check(kernel, case)] == notes


def test_a_mean_whose_count_wraps_is_detected() -> None:
    """Each copy's gradient is its share of the mean; the count is one of 8 bits."""

    def mean(logits: Tensor, labels: Tensor, *, cu_seqlens: Tensor, **options: Any) -> Tensor:
        count = int((labels != options.get("ignore_index", -100)).sum())
        loss = refs.cross_entropy_sum(logits, labels, cu_seqlens=cu_seqlens, shift=options.get("shift", False))
        return loss / max(count % 512, 1)

    assert any("copy" in violation.note or "last" in violation.note for violation in judged(mean, "cross_entropy"))


def test_what_zeros_change_is_no_violation() -> None:
    """An op whose state a zero moves: nothing is said of a long history, since a short one changes it too."""

    def affine(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor, **others: Any) -> object:
        y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens, **others)
        position = (
            torch.arange(len(x)) - cu_seqlens[torch.searchsorted(cu_seqlens, torch.arange(len(x)), right=True) - 1]
        )
        moved = torch.tanh(position[:, None] / 100).to(x.dtype)
        return (y[0] + moved, y[1]) if isinstance(y, tuple) else y + moved

    assert not any("zeros" in violation.note for violation in judged(affine, "causal_conv1d"))


class Clock:
    """A clock moved by the calls of a kernel: each takes seconds for each copy, the first of 4 copies compiles too."""

    def __init__(self, seconds_per_copy: float, seconds_to_compile: float = 0.0) -> None:
        self.seconds_per_copy, self.seconds_to_compile = seconds_per_copy, seconds_to_compile
        self.now, self.copies = 0.0, list[int]()

    def monotonic(self) -> float:
        return self.now

    def advance(self, call: Call) -> None:
        self.now += call.copies * self.seconds_per_copy
        if call.copies == 4 and 4 not in self.copies:
            self.now += self.seconds_to_compile
        self.copies.append(call.copies)


def repeated_at(
    clock: Clock, fractions: tuple[int, ...] = (4, 2), slow_calls_until: float = math.inf
) -> tuple[list[Violation], list[Refusal]]:
    """Judge a small case of a kernel that this clock times, at a size of 9 copies: what breaks, what is not judged."""

    class Timed(Small):
        time_limit = 10.0

        def run(self, call: Call) -> Result:
            clock.advance(call)
            return super().run(call)

    timed = size_property(replace(LIMITS, tokens=5_400, fractions=fractions, clock=clock.monotonic))
    space = Space(OPS["rope"], "float32", PROMISES, on_gpu=True)
    case, *_ = timed.suited(space, list(golden_cases(space)))
    kernel = KernelUnderTest(OPS["rope"], Timed(refs.rope), PROMISES, slow_calls_until=slow_calls_until)
    return list(timed.check(kernel, case)), kernel.refusals


def test_a_kernel_that_would_take_too_long_is_not_called_with_the_whole_size() -> None:
    clock = Clock(seconds_per_copy=2)
    violations, [limit] = repeated_at(clock)
    assert violations == []
    assert isinstance(limit, TooSlow)
    assert str(limit).startswith("too slow to be judged repeated ")
    assert str(limit).endswith("it would take about 18 s")
    assert limit.note == "past 9 sequences and 65,535 chunks of 256 tokens"
    assert max(clock.copies) == 4


def test_a_kernel_that_is_far_too_slow_is_called_with_the_smallest_sizes_twice() -> None:
    clock = Clock(seconds_per_copy=40)
    _, [limit] = repeated_at(clock, fractions=(9, 4, 2))
    assert "it would take about 360 s" in str(limit)
    assert [copies for copies in clock.copies if copies > 1] == [2, 2]


def test_times_that_hardly_differ_give_no_estimate() -> None:
    """Two copies meet a busy moment: nine would take 2.2 s on that line, with 2 s left."""

    class Flat(Clock):
        def advance(self, call: Call) -> None:
            self.now += 1.59 if call.copies == 2 else 1.5
            self.copies.append(call.copies)

    clock = Flat(seconds_per_copy=0)
    assert repeated_at(clock, fractions=(9, 4, 2), slow_calls_until=-1.0) == ([], [])
    assert max(clock.copies) == 9


def test_the_time_to_compile_does_not_count() -> None:
    clock = Clock(seconds_per_copy=0.2, seconds_to_compile=100.0)
    assert repeated_at(clock) == ([], [])
    assert max(clock.copies) == 9


@pytest.mark.parametrize(("seconds_of_others", "is_judged"), [(18.0, False), (400.0, True)])
def test_slow_calls_take_at_most_a_third_of_a_check(seconds_of_others: float, is_judged: bool) -> None:
    """A call of 9 s is within the limit of one call. It is made where the other cells took twice as long."""
    clock = Clock(seconds_per_copy=1)
    violations, limits = repeated_at(clock, slow_calls_until=slow_calls_until(-seconds_of_others, 0))
    assert violations == []
    assert (max(clock.copies) == 9) is is_judged
    assert [str(limit).endswith("it would take about 9 s, more than a third of the check") for limit in limits] == (
        [] if is_judged else [True]
    )


def test_a_call_of_a_fused_kernel_is_made_though_no_time_is_left() -> None:
    clock = Clock(seconds_per_copy=0.2)
    assert repeated_at(clock, slow_calls_until=-1.0) == ([], [])
    assert max(clock.copies) == 9


class NoRoomToDifferentiate(InProcess):
    """A machine that has the memory for the values of so many elements, and for the gradients of half as many."""

    most_elements = 2 * MOST_ELEMENTS[0]

    def run(self, call: Call) -> Result:
        if call.copies * call.inputs["x"].numel() * (2 if call.wrt else 1) > self.most_elements:
            raise MEMORY
        return super().run(call)


@pytest.mark.parametrize("from_elements", [None, MOST_ELEMENTS[0]], ids=["correct", "wrong past 2^16"])
def test_values_are_judged_alone_where_memory_lacks_for_the_gradients(from_elements: int | None) -> None:
    def rope(x: Tensor, *tables: Tensor, **others: Any) -> Tensor:
        y: Tensor = refs.rope(x, *tables, **others)
        if from_elements is None:
            return y
        return y + (torch.arange(x.numel()).view_as(x) >= from_elements)

    space = Space(OPS["rope"], "float32", PROMISES, on_gpu=True)
    *_, wide = SIZE.suited(space, list(golden_cases(space)))
    kernel = KernelUnderTest(OPS["rope"], NoRoomToDifferentiate(rope), PROMISES)
    violations = list(SIZE.check(kernel, wide))
    if from_elements is None:
        assert violations == []
        assert [limit.note for limit in kernel.refusals] == ["the gradients past 2^16 elements of a token's tensor"]
    else:
        assert any("past 2^16 elements" in violation.note for violation in violations)
        assert all(violation.tensor == TensorKey("y") for violation in violations)


MEMORY = MachineLimit("needs about 52 GB of GPU memory, 9 GB are free")
PADDED = OutsideDomain("a padded batch of 9 x 9 tokens would have 2^31 elements or more")


def wide_case(largest: int, stopped: Refusal) -> tuple[KernelUnderTest, Case]:
    """A kernel that takes so many elements of x, and its case of wide tokens."""

    class Small(InProcess):
        def run(self, call: Call) -> Result:
            if call.copies * call.inputs["x"].numel() > largest:
                raise stopped
            return super().run(call)

    space = Space(OPS["rope"], "float32", PROMISES, on_gpu=True)
    *_, wide = SIZE.suited(space, list(golden_cases(space)))
    return KernelUnderTest(OPS["rope"], Small(refs.rope), PROMISES), wide


@pytest.mark.parametrize("stopped", [MEMORY, PADDED], ids=["memory", "convention"])
def test_what_cannot_be_as_large_is_reported_and_the_rest_judged(stopped: Refusal) -> None:
    kernel, wide = wide_case(MOST_ELEMENTS[0], stopped)
    assert list(SIZE.check(kernel, wide)) == []
    [limit] = kernel.refusals
    seen = Coverage()
    seen.record_refusal(wide, limit)
    assert list(seen.reasons()) == [f"not judged past 2^16 elements of a token's tensor: {stopped}"]
    assert not seen.limits


@pytest.mark.parametrize(
    ("stopped", "reason"),
    [(MEMORY, "is too large to be judged here"), (PADDED, "is outside of the kernel's domain")],
    ids=["memory", "convention"],
)
def test_a_case_that_cannot_be_large_at_all_is_no_refusal_of_the_kernel(stopped: Refusal, reason: str) -> None:
    kernel, wide = wide_case(0, stopped)
    with pytest.raises(type(stopped)):
        list(SIZE.check(kernel, wide))
    seen = Coverage()
    seen.count_case(wide, frozenset({"a class"}), compared=False, refusal=stopped)
    seen.count_case(wide, frozenset({"another class"}), compared=True, refusal=None)
    assert (seen.refused_examples, seen.required_classes, len(seen.limits)) == (0, frozenset({"another class"}), 0)
    assert f"1 of 2 examples {reason}: {stopped}" in list(seen.reasons())


class Disturbed(Clock):
    """Calls of several copies, but not of all, take a little longer: another process has the GPU meanwhile."""

    def advance(self, call: Call) -> None:
        super().advance(call)
        self.now += 0.3 if 1 < call.copies < 9 else 0.0


def test_a_quick_kernel_beside_other_processes_is_not_taken_for_a_slow_one() -> None:
    clock = Disturbed(seconds_per_copy=0)
    assert repeated_at(clock, fractions=(9, 4, 2), slow_calls_until=-1.0) == ([], [])
    assert max(clock.copies) == 9
