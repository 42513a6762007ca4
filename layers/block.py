"""The base of the blocks: one pack in and out, a choice of ops, and parameters cast to the dtype of the tokens."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from packproof.base.arguments import whole_number
from packproof.base.errors import ArgumentError, checked_call
from packproof.base.wording import kind

_STEP_RANGE = (1e-3, 1e-1)


class PackedBlock(nn.Module, ABC):
    """A projection, a mixer over the tokens of each sequence, and a projection back.

    Tokens decide the dtype: weights and convolutions are cast to it. Decays, skips and step biases are fp32 beside bf16
    and fp16 tokens, as required by the ops. So a block may be kept in fp32 and called with bf16 tokens.
    """

    OPS: ClassVar[tuple[str, ...]]
    in_proj: nn.Linear
    conv1d: nn.Conv1d

    def __init__(self, ops: Any, recompute: bool) -> None:
        super().__init__()
        name = type(self).__name__
        if missing := [op for op in self.OPS if not callable(getattr(ops, op, None))]:
            raise ArgumentError(
                f"{name}: ops is {ops!r}, which has no {' and no '.join(missing)}; packproof.kernels, packproof.refs "
                "or an object with functions of these names was expected"
            )
        if not isinstance(recompute, bool):
            raise ArgumentError(f"{name}: recompute is {recompute!r}; True or False was expected")
        self.ops, self.recompute = ops, recompute

    @checked_call
    def forward(self, u: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        """Run the block over a pack.

        u: (t, d_model) or (1, t, d_model).
        cu_seqlens: int32 or int64 (s + 1,); rows past its end give zeros.
        Returns the shape and dtype of u. Raises ArgumentError and LayoutError.
        """
        projected = project(self._token_rows(u), self.in_proj)
        if not self.recompute:
            return self._mix_tokens(projected, cu_seqlens).view(u.shape)
        y: Tensor = checkpoint(self._mix_tokens, projected, cu_seqlens, use_reentrant=False, preserve_rng_state=False)
        return y.view(u.shape)

    @abstractmethod
    def _mix_tokens(self, projected: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Mix the output of in_proj, (t, ...), into (t, d_model)."""

    def _convolve(self, x: Tensor, cu_seqlens: Tensor, activation: Literal["silu"] | None = "silu") -> Tensor:
        """conv1d over each sequence, then the activation."""
        weight, bias = self.conv1d.weight.squeeze(1).to(x.dtype), self.conv1d.bias
        bias = None if bias is None else bias.to(x.dtype)
        y: Tensor = self.ops.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)
        return y

    def _token_rows(self, u: Tensor) -> Tensor:
        """u without a batch axis. Raises ArgumentError for another shape or dtype."""
        name, d_model = type(self).__name__, self.in_proj.in_features
        expected = f"(t, {d_model}) or (1, t, {d_model}) was expected"
        if not isinstance(u, Tensor):
            raise ArgumentError(f"{name}: u is {kind(u)} but a tensor {expected}")
        if u.ndim not in (2, 3) or u.shape[-1] != d_model or (u.ndim == 3 and len(u) != 1):
            raise ArgumentError(f"{name}: u is {tuple(u.shape)} but {expected}: one pack of tokens")
        if not u.is_floating_point():
            raise ArgumentError(f"{name}: u is {str(u.dtype).removeprefix('torch.')} but floats were expected")
        return u[0] if u.ndim == 3 else u


def project(x: Tensor, layer: nn.Linear) -> Tensor:
    """x times the weight of a layer, in the dtype of x. The bias is not added."""
    return functional.linear(x, layer.weight.to(x.dtype))


def at_least_fp32(parameter: Tensor, tokens: Tensor) -> Tensor:
    """The parameter in fp32, or in fp64 beside fp64 tokens."""
    return parameter.to(torch.promote_types(tokens.dtype, torch.float32))


def sizes(block: nn.Module, **values: Any) -> list[int]:
    """The sizes as ints. Raises ArgumentError for anything but whole numbers from 1 on."""
    return [whole_number(type(block).__name__, name, value, 1, ArgumentError) for name, value in values.items()]


def depthwise_conv(channels: int, width: int) -> nn.Conv1d:
    """A module for the weight (channels, 1, width) and bias of a causal convolution. It is never called."""
    return nn.Conv1d(channels, channels, width, groups=channels, padding=width - 1)


def step_bias(shape: Sequence[int]) -> Tensor:
    """A random bias. Its softplus is log-uniform between 1e-3 and 1e-1 (Gu & Dao 2023, section 3.6)."""
    log_min, log_max = map(math.log, _STEP_RANGE)
    return (log_min + (log_max - log_min) * torch.rand(shape)).exp().expm1().log()
