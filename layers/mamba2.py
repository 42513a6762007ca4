"""The block of Mamba-2 (Dao & Gu 2024, figure 6) over a pack."""

# mypy: allow-untyped-calls

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from packproof import kernels
from packproof.base.errors import ArgumentError, checked_init
from packproof.layers.block import PackedBlock, at_least_fp32, depthwise_conv, project, sizes, step_bias

_DECAY_RANGE = (1.0, 16.0)


@checked_init
class Mamba2Block(PackedBlock):
    """Mamba-2 over packed sequences: projection, causal convolution, SSD, gate, RMSNorm, projection.

    d_model: width of a token.
    d_state: states of each channel.
    d_conv: taps of the convolution.
    expand: inner channels for each of d_model.
    headdim: channels of a head.
    ngroups: number of groups. Heads of a group share B and C; channels of a group share a norm.
    ops: an object with causal_conv1d and ssd. packproof.kernels need a GPU or Triton's interpreter, and refuse calls
    outside of their support. packproof.refs run anywhere, also in fp64. Neither falls back to the other.
    recompute: whether backward repeats everything after in_proj instead of keeping it. States of tokens are never kept.
    It saves the tokens between the steps, for the time of one more forward pass.

    Apart from ops and recompute, the names, shapes and meaning of arguments and parameters are those of mamba-ssm's
    Mamba2. Its state dict loads. The gate comes before the norm, as in mamba-ssm with norm_before_gate=False.
    Called with u (t, d_model) or (1, t, d_model) and cu_seqlens, int32 or int64 (s + 1,); returns the shape of u. No
    sequence reaches another. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof import layers, refs
    >>> block = layers.Mamba2Block(d_model=8, d_state=4, headdim=8, ops=refs)
    >>> block(torch.randn(5, 8), cu_seqlens=torch.tensor([0, 2, 5])).shape
    torch.Size([5, 8])
    """

    OPS = ("causal_conv1d", "ssd")

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        d_conv: int = 4,
        expand: int = 2,
        headdim: int = 64,
        ngroups: int = 1,
        *,
        ops: Any = kernels,
        recompute: bool = False,
    ) -> None:
        super().__init__(ops, recompute)
        d_model, d_state, d_conv, expand = sizes(self, d_model=d_model, d_state=d_state, d_conv=d_conv, expand=expand)
        headdim, ngroups = sizes(self, headdim=headdim, ngroups=ngroups)
        d_inner = expand * d_model
        heads = _divide("channels", d_inner, "headdim", headdim)
        _divide("heads", heads, "ngroups", ngroups)
        self.d_conv, self.heads, self.groups = d_conv, (heads, headdim), (ngroups, d_state)
        conv_channels = d_inner + 2 * ngroups * d_state
        self.in_proj = nn.Linear(d_model, d_inner + conv_channels + heads, bias=False)
        self.conv1d = depthwise_conv(conv_channels, d_conv)
        self.dt_bias = nn.Parameter(step_bias([heads]))
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(*_DECAY_RANGE).log())
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = GroupRMSNorm(d_inner, ngroups)
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    def _mix_tokens(self, projected: Tensor, cu_seqlens: Tensor) -> Tensor:
        d_inner, bc_channels = self.norm.channels, math.prod(self.groups)
        z, xBC, dt = projected.split((d_inner, d_inner + 2 * bc_channels, self.heads[0]), dim=1)
        x, B, C = self._convolve(xBC, cu_seqlens).split((d_inner, bc_channels, bc_channels), dim=1)
        x, z = x.unflatten(1, self.heads), z.unflatten(1, self.heads)
        B, C = B.unflatten(1, self.groups), C.unflatten(1, self.groups)
        y = self.ops.ssd(
            *(
                x,
                dt,
                -at_least_fp32(self.A_log, x).exp(),
                B,
                C,
                at_least_fp32(self.D, x),
                None,
                at_least_fp32(self.dt_bias, x),
            ),
            dt_softplus=True,
            cu_seqlens=cu_seqlens,
        )
        # a gate inside the op keeps less, and backward computes y again: 1.35 x the time of this block on an H200
        return project(self.norm((y * functional.silu(z)).flatten(1)), self.out_proj)


class GroupRMSNorm(nn.Module):
    """RMSNorm over each group of channels, then a weight for each channel."""

    def __init__(self, channels: int, groups: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.channels, self.groups, self.eps = channels, groups, eps
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, y: Tensor) -> Tensor:
        """(t, channels), in the dtype of y."""
        weight = self.weight.to(y.dtype)
        if self.groups == 1:
            return functional.rms_norm(y, (self.channels,), weight, self.eps)  # in one pass
        grouped = y.unflatten(-1, (self.groups, -1))
        normed: Tensor = functional.rms_norm(grouped, grouped.shape[-1:], None, self.eps)
        return normed.flatten(-2) * weight


def _divide(count_name: str, count: int, divisor_name: str, divisor: int) -> int:
    """count / divisor. Raises ArgumentError unless it is whole."""
    if count % divisor:
        raise ArgumentError(f"Mamba2Block: {divisor_name} is {divisor}, which does not divide the {count} {count_name}")
    return count // divisor
