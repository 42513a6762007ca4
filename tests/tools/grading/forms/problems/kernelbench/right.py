"""A submission."""

from itertools import pairwise

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, width))

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        offsets = cu_seqlens.tolist()
        parts = []
        for start, end in pairwise(offsets):
            part = x[start:end]
            rows = torch.cat([part.new_zeros(weight.shape[1] - 1, x.shape[1]), part])
            parts.append(sum(rows[k : k + len(part)] * weight[:, k] for k in range(weight.shape[1])))
        return torch.cat([*parts, torch.zeros_like(x[offsets[-1] :])])
