"""Rotary tables for kernels without negative start positions: rows without rotation are put before the others."""

import torch
from torch import Tensor

from packproof.adapters.metadata import once

Tables = tuple[Tensor, Tensor, Tensor]


def with_nonnegative_starts(cos: Tensor, sin: Tensor, offsets: Tensor | None, cu_seqlens: Tensor) -> Tables:
    """Tables (m', r) and offsets (s,) >= 0 with the same rotations as cos, sin (m, r) and `offsets`.

    Without `offsets` they are all 0. The result is cached per batch.
    """
    if offsets is None:
        return cos, sin, once("no offsets", lambda: torch.zeros_like(cu_seqlens[1:]), cu_seqlens)

    def make() -> Tables:
        padding = max(0, -int(offsets.min())) if len(offsets) else 0
        identity_rows = cos.new_ones(padding, cos.shape[1])
        return torch.cat([identity_rows, cos]), torch.cat([0 * identity_rows, sin]), offsets + padding

    return once("start positions", make, cu_seqlens, cos, sin, offsets)
