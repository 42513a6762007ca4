"""The block of Mamba (Gu & Dao 2023, figure 3) over a pack."""

# mypy: allow-untyped-calls

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from packproof import kernels
from packproof.base.errors import checked_init
from packproof.layers.block import PackedBlock, at_least_fp32, depthwise_conv, project, sizes, step_bias


@checked_init
class MambaBlock(PackedBlock):
    """Mamba over packed sequences: projection, causal convolution, selective scan with its gate, projection.

    d_model: width of a token.
    d_state: states of each channel.
    d_conv: taps of the convolution.
    expand: inner channels for each of d_model.
    dt_rank: rank of the time step; "auto" is d_model / 16, rounded up.
    ops: an object with causal_conv1d and selective_scan. packproof.kernels need a GPU or Triton's interpreter, and
    refuse calls outside of their support. packproof.refs run anywhere, also in fp64. Neither falls back to the other.
    recompute: whether backward repeats everything after in_proj instead of keeping it. States of tokens are never kept.
    It saves the tokens between the steps, for the time of one more forward pass.

    Apart from ops and recompute, the names, shapes and meaning of arguments and parameters are those of mamba-ssm's
    Mamba. Its state dict loads.
    Called with u (t, d_model) or (1, t, d_model) and cu_seqlens, int32 or int64 (s + 1,); returns the shape of u. No
    sequence reaches another. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof import layers, refs
    >>> block = layers.MambaBlock(d_model=8, d_state=4, ops=refs)
    >>> block(torch.randn(5, 8), cu_seqlens=torch.tensor([0, 2, 5])).shape
    torch.Size([5, 8])
    """

    OPS = ("causal_conv1d", "selective_scan")

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | Literal["auto"] = "auto",
        *,
        ops: Any = kernels,
        recompute: bool = False,
    ) -> None:
        super().__init__(ops, recompute)
        d_model, d_state, d_conv, expand = sizes(self, d_model=d_model, d_state=d_state, d_conv=d_conv, expand=expand)
        [dt_rank] = sizes(self, dt_rank=math.ceil(d_model / 16) if dt_rank == "auto" else dt_rank)
        self.d_state, self.d_conv, self.dt_rank, d_inner = d_state, d_conv, dt_rank, expand * d_model
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.conv1d = depthwise_conv(d_inner, d_conv)
        self.x_proj = nn.Linear(d_inner, dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(dt_rank, d_inner)
        self.dt_proj.bias = nn.Parameter(step_bias([d_inner]))
        self.A_log = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(d_inner, 1))
        self.D = nn.Parameter(torch.ones(d_inner))
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    def _mix_tokens(self, projected: Tensor, cu_seqlens: Tensor) -> Tensor:
        x, z = projected.chunk(2, dim=1)
        x = self._convolve(x, cu_seqlens)
        dt, B, C = project(x, self.x_proj).split((self.dt_rank, self.d_state, self.d_state), dim=1)
        y = self.ops.selective_scan(
            *(x, project(dt, self.dt_proj), -at_least_fp32(self.A_log, x).exp(), B, C),
            *(at_least_fp32(self.D, x), z, at_least_fp32(self.dt_proj.bias, x)),
            delta_softplus=True,
            cu_seqlens=cu_seqlens,
        )
        return project(y, self.out_proj)
