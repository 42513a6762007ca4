"""A seeded race as data: the kernel that has it, correct without it, and its call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class PreparedCall:
    """A call that may be made again and again, on a GPU."""

    call: Callable[[], Tensors]
    """Makes it and returns its outputs, without waiting for them."""
    other_call: Callable[[], object]
    """Makes it with other values."""


@dataclass(frozen=True)
class Bug:
    """A race in a kernel."""

    name: str
    """The omission, in words joined by hyphens."""
    source: str
    """The file and the kernel, as "file:kernel"."""
    prepare: Callable[[torch.device, bool], PreparedCall]
    """The call of the kernel on a device, with the bug or without."""


def whole_numbers(shape: tuple[int, ...], device: torch.device, seed: int = 0) -> Tensor:
    """fp32 numbers from 0 to 15: sums of thousands of them are exact."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 16, shape, generator=generator).float().to(device)
