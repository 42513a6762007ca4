"""PyTorch's own implementations: its packed attentions, and short vectorised ops that torch.compile fuses.

The latter are compiled on a GPU; on a CPU they run uncompiled, where they can be tested quickly.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from packproof.adapters.metadata import max_seqlen, once, positions, seq_idx
from packproof.properties.declaration import kernel
from packproof.properties.promises import Promises

F = TypeVar("F", bound=Callable[..., Any])

_compile = cache(torch.compile)


def _compiled(function: F, like: Tensor) -> F:
    return _compile(function) if like.is_cuda else function  # type: ignore[return-value]


@kernel(
    op="attention",
    dtypes=("bfloat16", "float16"),
    promises=Promises(compute="operand"),
    refuses=("multiple of 8", "only supports head dimension", "unexpected keyword argument 'scale'"),
    slack=False,
)
def varlen_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
) -> Tensor:
    """torch.nn.attention.varlen: FlashAttention-2 as PyTorch ships it. No grouped heads, one head dim."""
    from torch.nn.attention.varlen import varlen_attn as attend  # noqa: PLC0415  (torch 2.10 and later)

    if q.shape[-1] != v.shape[-1] or q.shape[1] != k.shape[1]:
        raise NotImplementedError("one head dim and one number of heads for q, k and v")
    most = once("longest", lambda: max_seqlen(cu_seqlens, len(q)), cu_seqlens)
    window = (window_size[0], 0) if causal else window_size
    scale: Any = {} if softmax_scale is None else {"scale": softmax_scale}  # not in every version
    result: Any = attend(q, k, v, cu_seqlens, cu_seqlens, most, most, window_size=window, **scale)
    return result  # type: ignore[no-any-return]


@kernel(
    op="attention",
    promises=Promises(compute="operand"),
    refuses=(
        "No viable backend for scaled_dot_product_attention",
        "no broadcasting is currently performed",
        "not implemented for jagged layout",
        "no kernel found to launch",
        "hidden_dim should be multiple of 8",
    ),
    slack=False,
)
def jagged_sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    causal: bool = False,
    softmax_scale: float | None = None,
) -> Tensor:
    """scaled_dot_product_attention of jagged nested tensors, which refuses empty sequences; on a CPU not causal."""

    def nested(x: Tensor) -> Tensor:
        rows: Tensor = torch.nested.nested_tensor_from_jagged(x, cu_seqlens)
        return rows.transpose(1, 2)

    several = q.shape[1] != k.shape[1]
    y = functional.scaled_dot_product_attention(
        nested(q), nested(k), nested(v), is_causal=causal, scale=softmax_scale, enable_gqa=several
    )
    result: Tensor = y.transpose(1, 2).values()
    return result


@kernel(
    op="attention",
    promises=Promises(compute="operand"),
    refuses=("embedding dimension of the query, key, and value must be at least 16",),
    slack=False,
)
def flex_attention(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, causal: bool = False) -> Tensor:
    """FlexAttention with a document mask over a batch of one pack; its block mask is made once per batch.

    NaN in slack rows comes back in slack rows. On a CPU it has no gradients.
    """
    from torch.nn.attention.flex_attention import flex_attention as attend  # noqa: PLC0415

    mask = _block_mask(cu_seqlens, len(q), causal)
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    result: Any = _compiled(attend, q)(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return result.squeeze(0).transpose(0, 1)  # type: ignore[no-any-return]


def _block_mask(cu_seqlens: Tensor, tokens: int, causal: bool) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask  # noqa: PLC0415

    def make() -> Any:
        sequence: Tensor = seq_idx(cu_seqlens, tokens)

        def together(_batch: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (sequence[i] == sequence[j]) & (sequence[i] >= 0)

        def together_before(_batch: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (sequence[i] == sequence[j]) & (sequence[i] >= 0) & (i >= j)

        create = _compiled(create_block_mask, cu_seqlens)  # uncompiled, it would allocate a mask of tokens x tokens
        mask = together_before if causal else together
        return create(mask, None, None, tokens, tokens, device=cu_seqlens.device.type)

    return once(("block mask", tokens, causal), make, cu_seqlens)


def _positions(cu_seqlens: Tensor, tokens: int) -> Tensor:
    return once(("positions", tokens), lambda: positions(cu_seqlens, tokens), cu_seqlens)


@kernel(op="rope")
def compiled_rope(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    """Rope with gathered rows of the tables, compiled by torch.compile."""
    if not len(cos):  # the table is as long as the longest sequence, and none has a token
        return torch.zeros_like(x)
    return _compiled(_rope, x)(x, cos, sin, _positions(cu_seqlens, len(x)), interleaved)


def _rope(x: Tensor, cos: Tensor, sin: Tensor, position: Tensor, interleaved: bool) -> Tensor:
    wide, r = torch.promote_types(x.dtype, torch.float32), cos.shape[1]
    inside = (position >= 0)[:, None, None]
    row = position.clamp(min=0)
    c, s = cos[row].to(wide)[:, None], sin[row].to(wide)[:, None]
    x = torch.where(inside, x, 0)
    wide_x, rest = x[..., : 2 * r].to(wide), x[..., 2 * r :]
    first, second = (wide_x[..., ::2], wide_x[..., 1::2]) if interleaved else (wide_x[..., :r], wide_x[..., r:])
    pairs = torch.stack([first * c - second * s, first * s + second * c], -1 if interleaved else -2)
    return torch.where(inside, torch.cat([pairs.flatten(-2).to(x.dtype), rest], -1), 0)


@kernel(op="causal_conv1d")
def compiled_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: str | None = None
) -> Tensor:
    """The convolution as a sum over its taps, compiled by torch.compile."""
    return _compiled(_conv1d, x)(x, weight, bias, _positions(cu_seqlens, len(x)), activation)


def _conv1d(x: Tensor, weight: Tensor, bias: Tensor | None, position: Tensor, activation: str | None) -> Tensor:
    wide, w, place = torch.promote_types(x.dtype, torch.float32), weight.shape[1], position[:, None]
    padded = functional.pad(torch.where(place >= 0, x, 0).to(wide), (0, 0, w - 1, 0))
    y = torch.zeros_like(x, dtype=wide) if bias is None else bias.to(wide)
    for tap in range(w):
        back = w - 1 - tap
        y = y + torch.where(place >= back, padded[tap : tap + len(x)], 0) * weight[:, tap].to(wide)
    y = functional.silu(y) if activation == "silu" else y
    return torch.where(place >= 0, y, 0).to(x.dtype)
