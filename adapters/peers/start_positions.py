"""Rotary tables for kernels that take start positions from 0 on: rows that rotate nothing come before the others."""

import torch
from torch import Tensor

from packproof.adapters.metadata import once

Tables = tuple[Tensor, Tensor, Tensor]


def from_zero_on(cos: Tensor, sin: Tensor, offsets: Tensor | None, cu_seqlens: Tensor) -> Tables:
    """cos, sin (m', r) and offsets (s,), none below 0, that rotate as cos, sin (m, r) and these offsets do; all 0 where
    there are none. Made once per batch."""
    if offsets is None:
        return cos, sin, once("no offsets", lambda: torch.zeros_like(cu_seqlens[1:]), cu_seqlens)

    def make() -> Tables:
        padding = max(0, -int(offsets.min())) if len(offsets) else 0
        ahead = cos.new_ones(padding, cos.shape[1])
        return torch.cat([ahead, cos]), torch.cat([0 * ahead, sin]), offsets + padding

    return once("start positions", make, cu_seqlens, cos, sin, offsets)
