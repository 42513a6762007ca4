"""Blocks and sequences small enough for the references and the interpreter (chunks of 16, segments of 32)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from packproof.layers import Mamba2Block, MambaBlock

LENGTHS = (1, 0, 17, 9)
WIDTH = 4  # of the model
OPS = {"mamba": "selective_scan", "mamba2": "ssd"}


def small(block: str, ops: Any) -> Callable[[], nn.Module]:
    """Builds "mamba" or "mamba2" from these ops, with the same parameters each time."""
    forms: dict[str, Callable[[], nn.Module]] = {
        "mamba": partial(MambaBlock, WIDTH, d_state=4, dt_rank=3, ops=ops),
        "mamba2": partial(Mamba2Block, WIDTH, d_state=8, expand=3, headdim=6, ops=ops),
    }
    return seeded(forms[block])


def seeded(form: Callable[[], nn.Module], device: str = "cpu") -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        block = form()
        for layer in block.modules():
            if isinstance(layer, nn.Linear | nn.Conv1d):  # at their initial size they learn little in a few steps
                nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
        return block.to(device)

    return make
