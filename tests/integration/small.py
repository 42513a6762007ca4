"""Blocks and sequences small enough for the references and the interpreter (chunks of 16, segments of 32)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.integration.blocks import Mamba, Mamba2

LENGTHS = (1, 0, 17, 9)
WIDTH = 4  # of the model
OPS = {"mamba": "selective_scan", "mamba2": "ssd"}


def small(block: str, ops: Any) -> Callable[[], nn.Module]:
    """Builds "mamba" or "mamba2" from these ops, with the same parameters each time."""
    forms: dict[str, Callable[[], nn.Module]] = {
        "mamba": partial(Mamba, ops, WIDTH, n=4, rank=3),
        "mamba2": partial(Mamba2, ops, WIDTH, h=2, p=6, n=8),
    }
    return seeded(forms[block])


def seeded(form: Callable[[], nn.Module], device: str = "cpu") -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return form().to(device)

    return make
