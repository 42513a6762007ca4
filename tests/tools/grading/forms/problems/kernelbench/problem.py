"""A packed causal convolution, depthwise."""

import itertools

import torch
from torch import nn


class Model(nn.Module):
    """Each sequence of a pack is convolved by itself."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, width))

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        offsets = cu_seqlens.tolist()
        for start, end in itertools.pairwise(offsets):
            for k in range(self.weight.shape[1]):
                shift = self.weight.shape[1] - 1 - k
                y[start + shift : end] += x[start : max(end - shift, start)] * self.weight[:, k]
        return y


tokens, channels, width = 4096, 64, 4


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(tokens, channels), torch.tensor([0, tokens // 3, tokens], dtype=torch.int32)]


def get_init_inputs() -> list[int]:
    return [channels, width]
