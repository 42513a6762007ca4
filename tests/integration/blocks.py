"""One Mamba and one Mamba-2 block over packed tokens, from packproof's ops: `ops` is packproof.refs or .kernels.

Parameters are fp32; those that multiply tokens are cast to their dtype; decays, skips and step biases stay fp32.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu


def weight(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) / math.sqrt(columns))


def step_bias(n: int) -> nn.Parameter:
    """softplus of it lies between 1e-3 and 1e-1, evenly in the logarithm (Gu & Dao 2023, section 3.6)."""
    step = torch.exp(torch.linspace(math.log(1e-3), math.log(1e-1), n))
    return nn.Parameter(step.expm1().log())


class Mamba(nn.Module):
    """Gu & Dao 2023, figure 3: convolution, selective scan, gate. Channels are twice as many as in the model."""

    def __init__(self, ops: Any, d_model: int, *, n: int, rank: int, width: int = 4) -> None:
        super().__init__()
        d = 2 * d_model
        self.ops, self.parts = ops, (rank, n, n)
        self.in_proj = weight(2 * d, d_model)
        self.conv_weight, self.conv_bias = weight(d, width), nn.Parameter(torch.zeros(d))
        self.x_proj, self.dt_proj = weight(rank + 2 * n, d), weight(d, rank)
        self.dt_bias = step_bias(d)
        self.A_log = nn.Parameter(torch.arange(1.0, n + 1).log().repeat(d, 1))
        self.D = nn.Parameter(torch.ones(d))
        self.out_proj = weight(d_model, d)

    def forward(self, tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
        """(t, d_model) to (t, d_model)."""
        x, z = linear(tokens, self.in_proj.to(tokens)).chunk(2, dim=1)
        conv = self.conv_weight.to(x), self.conv_bias.to(x)
        x = self.ops.causal_conv1d(x, *conv, cu_seqlens=cu_seqlens, activation="silu")
        dt, B, C = linear(x, self.x_proj.to(x)).split(self.parts, dim=1)
        y = self.ops.selective_scan(
            *(x, linear(dt, self.dt_proj.to(x)), -self.A_log.exp(), B, C, self.D, z, self.dt_bias),
            delta_softplus=True,
            cu_seqlens=cu_seqlens,
        )
        return linear(y, self.out_proj.to(y))


class Mamba2(nn.Module):
    """Dao & Gu 2024, figure 6: one projection, convolution of x, B and C, SSD, gated RMSNorm."""

    def __init__(self, ops: Any, d_model: int, *, h: int, p: int, n: int, g: int = 1, width: int = 4) -> None:
        super().__init__()
        d, self.heads, self.groups = h * p, (h, p), (g, n)
        self.ops, self.parts, self.conv_parts = ops, (d, d + 2 * g * n, h), (d, g * n, g * n)
        self.in_proj = weight(sum(self.parts), d_model)
        self.conv_weight, self.conv_bias = weight(self.parts[1], width), nn.Parameter(torch.zeros(self.parts[1]))
        self.dt_bias = step_bias(h)
        self.A_log = nn.Parameter(torch.linspace(1, 16, h).log())
        self.D = nn.Parameter(torch.ones(h))
        self.norm = nn.Parameter(torch.ones(d))
        self.out_proj = weight(d_model, d)

    def forward(self, tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
        """(t, d_model) to (t, d_model)."""
        z, xBC, dt = linear(tokens, self.in_proj.to(tokens)).split(self.parts, dim=1)
        conv = self.conv_weight.to(xBC), self.conv_bias.to(xBC)
        xBC = self.ops.causal_conv1d(xBC, *conv, cu_seqlens=cu_seqlens, activation="silu")
        x, B, C = xBC.split(self.conv_parts, dim=1)
        x, B, C = x.unflatten(1, self.heads), B.unflatten(1, self.groups), C.unflatten(1, self.groups)
        y = self.ops.ssd(
            *(x, dt, -self.A_log.exp(), B, C, self.D),
            dt_bias=self.dt_bias,
            dt_softplus=True,
            cu_seqlens=cu_seqlens,
        ).flatten(1)
        y = rms_norm(y * silu(z), y.shape[1:], self.norm.to(y))
        return linear(y, self.out_proj.to(y))
