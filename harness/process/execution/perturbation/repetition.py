"""Makes one call many times under perturbation, and keeps the answer farthest from the first one."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from packproof.harness.process.execution.perturbation.compilers import pauses_compiled_in
from packproof.harness.process.execution.perturbation.load import Load

Answer = TypeVar("Answer")

_MOST_SECONDS = 30.0  # for all calls: fewer are made of a kernel that takes longer
_BACK_TO_BACK = 4  # calls that are launched before the first answer is read


@dataclass
class Repetition(Generic[Answer]):
    """The answers to one call made again and again."""

    farthest: Answer
    """The one with the largest difference from the first; the first where all have its bits."""
    calls: int = 0
    """How many were compared with the first."""
    different: int = 0
    """How many of these had other bits."""
    distance: float = 0.0
    """The largest difference of an element."""

    def add(self, answer: Answer, distance: float) -> None:
        """Count one more answer, at this distance from the first."""
        self.calls += 1
        self.different += distance > 0
        if distance > self.distance:
            self.farthest, self.distance = answer, distance


def repeat_perturbed(
    call: Callable[[], Answer],
    other_call: Callable[[], object],
    tensors_of: Callable[[Answer], Mapping[str, Tensor]],
    *,
    calls: int,
    device: torch.device,
    seed: int,
    with_pauses: float = 0.75,
) -> Repetition[Answer]:
    """Make a call so many times, each with other pauses and other work beside it; after 30 seconds, no more.

    other_call: one with other values, before each: the memory that a call finds holds another answer than its own.
    tensors_of: the tensors of an answer that are compared.
    device: a GPU.
    with_pauses: the share of the calls whose kernels have pauses.
    """
    first = call()
    expected = {name: x.detach().clone() for name, x in tensors_of(first).items()}
    with pauses_compiled_in(seed):
        call()  # compiles it, for the calls below to run back to back
    repetition, random_source = Repetition(first), random.Random(seed)
    load = Load(device, random_source)
    deadline = time.monotonic() + _MOST_SECONDS
    for count in _batches(calls):
        if time.monotonic() > deadline:
            break
        load.hold_back()
        answers = []
        for _ in range(count):
            pauses = pauses_compiled_in(seed) if random_source.random() < with_pauses else nullcontext()
            with pauses:
                other_call()
                load.disturb()
                answers.append(call())
        distances = torch.stack([distance(tensors_of(answer), expected, device) for answer in answers]).tolist()
        for answer, largest in zip(answers, distances, strict=True):
            repetition.add(answer, largest)
    return repetition


def _batches(calls: int) -> Iterator[int]:
    for start in range(0, calls, _BACK_TO_BACK):
        yield min(_BACK_TO_BACK, calls - start)


def distance(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """The largest difference of an element, fp32 () on the device: infinite where one of both is NaN or missing."""
    largest = torch.zeros((), device=device)
    if tensors.keys() != expected.keys():
        return largest + torch.inf
    for name, x in tensors.items():
        y = expected[name]
        if x.shape != y.shape:
            return largest + torch.inf
        if x.numel():
            is_same = (x == y) | (x.isnan() & y.isnan())
            difference = torch.where(is_same, 0.0, (x.float() - y.float()).abs())
            # unequal, but by less than fp32 can say
            difference = torch.where(is_same, difference, difference.clamp_min(torch.finfo(torch.float32).tiny))
            largest = torch.maximum(largest, difference.nan_to_num(nan=torch.inf).max())
    return largest
