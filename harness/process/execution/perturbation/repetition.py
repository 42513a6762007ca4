"""Makes one call many times under perturbation, and keeps the answer farthest from the first one."""

import random
import time
from collections.abc import Callable, Mapping
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
    repetition, random_source, deadline = Repetition(first), random.Random(seed), time.monotonic() + _MOST_SECONDS
    with Load(device, random_source) as load:
        while repetition.calls < calls and time.monotonic() < deadline:
            load.hold_back()
            answers = []
            for _ in range(min(_BACK_TO_BACK, calls - repetition.calls)):
                with pauses_compiled_in(seed) if random_source.random() < with_pauses else nullcontext():
                    other_call()
                    load.disturb()
                    answers.append(call())
            distances = torch.stack([distance(tensors_of(answer), expected, device) for answer in answers])
            for answer, largest in zip(answers, distances.tolist(), strict=True):
                repetition.add(answer, largest)
    return repetition


def distance(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """The largest difference of an element, fp32 () on the device: infinite where one of both is NaN or missing."""
    largest = torch.zeros((), device=device)
    if any(tensors.keys() ^ expected.keys()) or any(x.shape != expected[name].shape for name, x in tensors.items()):
        return largest + torch.inf
    for name, x in tensors.items():
        if x.numel():
            largest = torch.maximum(largest, _differences(x, expected[name]).max())
    return largest


def _differences(x: Tensor, y: Tensor) -> Tensor:
    """0 for the same values and for two NaN, infinity for NaN and a number, above 0 elsewhere, whatever fp32 says."""
    is_same = (x == y) | (x.isnan() & y.isnan())
    differences = (x.float() - y.float()).abs().clamp_min(torch.finfo(torch.float32).tiny)
    return torch.where(is_same, 0.0, differences.nan_to_num(nan=torch.inf))
