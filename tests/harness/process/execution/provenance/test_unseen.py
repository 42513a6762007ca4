"""What computes where operators of torch are not seen is recorded by what left torch, and by whom."""

import threading
from collections.abc import Callable
from itertools import accumulate

import numpy as np
import pytest
import torch
from torch import Tensor

from packproof.harness.process.execution.provenance.ownership import Ownership
from packproof.harness.process.execution.provenance.trace import Trace


def recorded(function: Callable[[Tensor], object], x: Tensor) -> list[str]:
    trace = Trace(Ownership(function))
    with trace.watch("forward"):
        function(x)
    return [f"{item.kind} {item.name}" for item in trace.computed]


def in_numpy(x: Tensor) -> object:
    return np.asarray(x).cumsum()


def in_numbers(x: Tensor) -> object:
    return list(accumulate(x.tolist()))


def in_a_thread(x: Tensor) -> None:
    thread = threading.Thread(target=x.cumsum, args=(0,))
    thread.start()
    thread.join()


def in_integers(x: Tensor) -> object:
    return x.to(torch.int64).cumsum(0)


def in_bits(x: Tensor) -> object:
    return torch.stack([x.view(torch.int32), x.view(torch.int32)])[0] + 1


def by_moving(x: Tensor) -> object:
    return torch.ops.aten.unfold_backward(x.expand(4, 4), [7], 0, 4, 1)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (in_numpy, ["outside Tensor.__array__"]),
        (in_numbers, ["outside Tensor.tolist"]),
        (in_a_thread, ["outside a new thread"]),
        (in_integers, ["torch aten::cumsum"]),
        (in_bits, ["torch aten::add"]),
        (by_moving, ["torch aten::unfold_backward"]),
    ],
)
def test_what_leaves_or_only_seems_to_move_is_recorded(function: Callable[[Tensor], object], names: list[str]) -> None:
    assert recorded(function, torch.randn(4)) == names


def with_offsets(x: Tensor) -> object:
    ends = torch.tensor([0, 2, 4]).cumsum(0).tolist()
    places = x.new_zeros(4, dtype=torch.int32) + 1
    return ends, places, x.view(torch.uint8).contiguous().clone()


def test_offsets_masks_and_copies_of_bits_are_free() -> None:
    assert recorded(with_offsets, torch.randn(4)) == []


def test_nothing_stays_after_the_call() -> None:
    start = threading.Thread.start
    before = threading._start_new_thread
    recorded(in_numpy, torch.randn(4))
    assert threading.Thread.start is start
    assert threading._start_new_thread is before
