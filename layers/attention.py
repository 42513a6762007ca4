"""The attention block of Mamba hybrids, over a pack: grouped heads, rotary positions and a convolution."""

# mypy: allow-untyped-calls

import math
from typing import Any

import torch
from torch import Tensor, nn

from packproof import kernels
from packproof.base.arguments import whole_number
from packproof.base.errors import ArgumentError, checked_init
from packproof.layers.block import PackedBlock, at_least_fp32, depthwise_conv, project, sizes


@checked_init
class AttentionBlock(PackedBlock):
    """Causal attention over packed sequences: projection, convolution, rotary positions, softmax attention, projection.

    embed_dim: width of a token.
    num_heads: heads of the queries.
    num_heads_kv: heads of the keys and values, a divisor of num_heads; None for num_heads.
    head_dim: channels of a head; None for embed_dim / num_heads.
    d_conv: taps of the convolution, 0 for none.
    rotary_emb_dim: rotated channels of a head, 0 for none.
    rotary_emb_base, rotary_emb_interleaved: as in `packproof.refs.rope` (Su et al. 2021).
    sliding_window: number of tokens seen by a query, itself included, as in transformers; None for all.
    ops: an object with causal_conv1d, rope_qk and attention. packproof.kernels need a GPU or Triton's interpreter, and
    refuse calls outside of their support. packproof.refs run anywhere, also in fp64. Neither falls back to the other.
    recompute: whether backward repeats everything after in_proj instead of keeping it. Scores are never kept. It saves
    the queries, keys and values between the steps, for the time of one more forward pass.

    Apart from sliding_window, ops and recompute, the names, shapes and meaning of arguments and parameters are those of
    mamba-ssm's MHA without biases of the projections. Its state dict loads.
    Called with u (t, embed_dim) or (1, t, embed_dim) and cu_seqlens, int32 or int64 (s + 1,); returns the shape of u.
    No sequence reaches another, and positions restart in each. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof import layers, refs
    >>> block = layers.AttentionBlock(8, num_heads=4, num_heads_kv=2, rotary_emb_dim=2, ops=refs)
    >>> block(torch.randn(5, 8), cu_seqlens=torch.tensor([0, 2, 5])).shape
    torch.Size([5, 8])
    """

    OPS = ("causal_conv1d", "rope_qk", "attention")

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_heads_kv: int | None = None,
        head_dim: int | None = None,
        d_conv: int = 0,
        rotary_emb_dim: int = 0,
        rotary_emb_base: float = 10000.0,
        rotary_emb_interleaved: bool = False,
        *,
        sliding_window: int | None = None,
        ops: Any = kernels,
        recompute: bool = False,
    ) -> None:
        super().__init__(ops, recompute)
        embed_dim, num_heads = sizes(self, embed_dim=embed_dim, num_heads=num_heads)
        [num_heads_kv] = sizes(self, num_heads_kv=num_heads if num_heads_kv is None else num_heads_kv)
        _require_divisor("num_heads_kv", num_heads_kv, "num_heads", num_heads)
        if head_dim is None:
            _require_divisor("num_heads", num_heads, "embed_dim", embed_dim, "; say head_dim where it is another")
        [head_dim] = sizes(self, head_dim=embed_dim // num_heads if head_dim is None else head_dim)
        self.heads, self.head_dim = (num_heads, num_heads_kv), head_dim
        self.d_conv = whole_number("AttentionBlock", "d_conv", d_conv, 0, ArgumentError)
        self.rotary = _checked_rotary(rotary_emb_dim, rotary_emb_base, rotary_emb_interleaved, head_dim)
        self.sliding_window = sliding_window
        if sliding_window is not None:
            [self.sliding_window] = sizes(self, sliding_window=sliding_window)
        qkv = head_dim * (num_heads + 2 * num_heads_kv)
        self.in_proj = nn.Linear(embed_dim, qkv, bias=False)
        if self.d_conv:
            self.conv1d = depthwise_conv(qkv, self.d_conv)
        self.out_proj = nn.Linear(head_dim * num_heads, embed_dim, bias=False)

    def _mix_tokens(self, projected: Tensor, cu_seqlens: Tensor) -> Tensor:
        if self.d_conv:
            projected = self._convolve(projected, cu_seqlens, activation=None)
        heads, kv_heads = self.heads
        q, k, v = projected.unflatten(1, (-1, self.head_dim)).split((heads, kv_heads, kv_heads), dim=1)
        if self.rotary[0]:
            cos, sin = self._rotary_tables(projected)
            q, k = self.ops.rope_qk(q, k, cos, sin, cu_seqlens=cu_seqlens, interleaved=self.rotary[2])
        window_left = -1 if self.sliding_window is None else self.sliding_window - 1
        y = self.ops.attention(q, k, v, cu_seqlens=cu_seqlens, causal=True, window_size=(window_left, 0))
        return project(y.flatten(1), self.out_proj)

    def _rotary_tables(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (t, r) for the t positions possible in the pack: only the GPU knows the longest sequence.

        Angles are fp64, since fp32 rounds the angle of position 65,535 by up to 4e-3.
        """
        channels, base, _ = self.rotary
        position = torch.arange(len(tokens), device=tokens.device, dtype=torch.float64)
        pair = torch.arange(0, channels, 2, device=tokens.device, dtype=torch.float64)
        angle = position[:, None] * base ** (-pair / channels)
        return at_least_fp32(angle.cos(), tokens), at_least_fp32(angle.sin(), tokens)


def _checked_rotary(channels: int, base: float, interleaved: bool, head_dim: int) -> tuple[int, float, bool]:
    """The rotary arguments, checked. Raises ArgumentError."""
    channels = whole_number("AttentionBlock", "rotary_emb_dim", channels, 0, ArgumentError)
    if channels % 2 or channels > head_dim:
        raise ArgumentError(
            f"AttentionBlock: rotary_emb_dim is {channels}; an even number up to head_dim, {head_dim}, was expected"
        )
    if isinstance(base, bool) or not isinstance(base, int | float) or not 0 < base < math.inf:
        raise ArgumentError(f"AttentionBlock: rotary_emb_base is {base!r}; a finite number above 0 was expected")
    if not isinstance(interleaved, bool):
        raise ArgumentError(f"AttentionBlock: rotary_emb_interleaved is {interleaved!r}; True or False was expected")
    return channels, base, interleaved


def _require_divisor(name: str, divisor: int, total_name: str, total: int, hint: str = "") -> None:
    """Raises ArgumentError unless `divisor` divides `total`. hint: the end of the error text."""
    if total % divisor:
        raise ArgumentError(f"AttentionBlock: {name} is {divisor}, which does not divide {total_name}, {total}{hint}")
