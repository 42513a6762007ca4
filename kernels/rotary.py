"""Rotary position embedding over a pack, in Triton: forward turns by the position in a sequence, backward back."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.kernels.launch import POINTERS, alignments, interpreted, on_host, require_device, rows, widen
from packproof.kernels.sequences import locate, offsets
from packproof.kernels.variant import Variant
from packproof.refs.arguments import bind, check_option
from packproof.refs.errors import ArgumentError

PROMISES: dict[str, Any] = {"grid": "token", "chunk": 16, "compute": "fp32", "deterministic": True, "isolated": True}
INTERPRETED: dict[str, Any] = {}

_OP = "rope"
_TILE = {"HEADS": 8, "BLOCK_T": 16, "BLOCK_R": 64}
_TILE_FP64 = {"HEADS": 8, "BLOCK_T": 8, "BLOCK_R": 64}  # what registers hold
_NUM_WARPS = 4
_TILE_INTERPRETED = {"HEADS": 2, "BLOCK_T": 16, "BLOCK_R": 4}  # tests are small, and want more than one block


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate the first 2r channels of each head; positions restart at 0 in each sequence, other channels pass through.

    x: (t, h, k) in fp64, fp32, bf16 or fp16 (the last two compute in fp32). cos, sin: (m, r), one row per position, in
    x's dtype or fp32, with 2r <= k and m at least the longest sequence; they get no gradient. cu_seqlens: int32 or
    int64 (s + 1,). interleaved: channel 2i pairs with 2i + 1 (GPT-J); otherwise channel i pairs with i + r (GPT-NeoX).

    Returns y (t, h, k) in x's dtype, zero in slack. The bits of a sequence's values and gradients do not depend on the
    others. Nothing waits for a GPU: there the values of cu_seqlens are not checked, and the rotated channels of a
    position past the end of the tables are NaN. Raises ArgumentError and LayoutError.
    """
    check_option(_OP, "interleaved", interleaved, (False, True))
    if not torch.compiler.is_compiling():
        _check(x, cos, sin, cu_seqlens, values=on_host(x))
        require_device(_OP, x, _rope_kernel)
    result: Tensor = _rope(x, cos, sin, cu_seqlens, bool(interleaved), False)
    return result


@triton.jit(do_not_specialize=["cos", "sin", "cu_seqlens", "T", "S", "H", "R", "M", "sign"])
def _rope_kernel(
    x, cos, sin, cu_seqlens, y, T, S, H, K, R, M, x_stride, head_stride, sign,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Turn the pairs of HEADS heads of BLOCK_T tokens, BLOCK_R pairs at a time, and copy the channels behind them."""
    groups = tl.cdiv(H, HEADS)
    t = (tl.program_id(0) // groups).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    first = tl.program_id(0) % groups * HEADS
    last = tl.minimum(first + HEADS, H)
    sequence, start, _ = locate(cu_seqlens, S, T, t)
    alive = (sequence < S)[:, None]
    stored = (t < T)[:, None]
    position = t - start
    source = x + t[:, None] * x_stride + first.to(tl.int64) * head_stride
    target = y + (t[:, None] * H + first) * K
    for block in range(0, R, BLOCK_R):
        pair = block + tl.arange(0, BLOCK_R)
        known = alive & (position < M)[:, None] & (pair < R)[None, :]
        entry = position[:, None] * R + pair[None, :]
        # a position past the tables is NaN, never a neighbour's row
        c = widen(tl.load(cos + entry, mask=known, other=float("nan")))
        s = widen(tl.load(sin + entry, mask=known, other=float("nan"))) * sign
        half = pair[None, :]
        both = (2 * block + tl.arange(0, 2 * BLOCK_R))[None, :]
        head, turned = source, target
        for _h in range(first, last):
            if INTERLEAVED:
                value = widen(tl.load(head + both, mask=alive & (both < 2 * R), other=0.0))
                x1, x2 = tl.split(tl.reshape(value, (BLOCK_T, BLOCK_R, 2)))
            else:
                x1 = widen(tl.load(head + half, mask=alive & (half < R), other=0.0))
                x2 = widen(tl.load(head + R + half, mask=alive & (half < R), other=0.0))
            y1 = tl.where(alive, x1 * c - x2 * s, 0.0).to(y.dtype.element_ty)
            y2 = tl.where(alive, x1 * s + x2 * c, 0.0).to(y.dtype.element_ty)
            if INTERLEAVED:
                tl.store(
                    turned + both, tl.reshape(tl.join(y1, y2), (BLOCK_T, 2 * BLOCK_R)), mask=stored & (both < 2 * R)
                )
            else:
                tl.store(turned + half, y1, mask=stored & (half < R))
                tl.store(turned + R + half, y2, mask=stored & (half < R))
            head += head_stride
            turned += K
    for block in range(2 * R, K, BLOCK_R):
        column = (block + tl.arange(0, BLOCK_R))[None, :]
        head, copied = source, target
        for _h in range(first, last):
            value = tl.load(head + column, mask=alive & (column < K), other=0.0)
            tl.store(copied + column, value, mask=stored & (column < K))
            head += head_stride
            copied += K


def _tile(dtype: torch.dtype) -> dict[str, int]:
    if interpreted(_rope_kernel):
        return _TILE_INTERPRETED
    return _TILE_FP64 if dtype == torch.float64 else _TILE


def _check(x: Tensor, cos: Tensor, sin: Tensor, cu_seqlens: Tensor, values: bool) -> None:
    tensors = {"x": (x, "t h k"), "cos": (cos, "m r"), "sin": (sin, "m r")}
    sizes = bind(_OP, tensors, cu_seqlens, values=values, tables=("cos", "sin"))
    if 2 * sizes["r"] > sizes["k"]:
        raise ArgumentError(f"{_OP}: cos rotates 2 x {sizes['r']} channels (axis r) but x has {sizes['k']} (axis k)")
    if values and sizes["s"] and (longest := int(cu_seqlens.diff().max())) > sizes["m"]:
        raise ArgumentError(
            f"{_OP}: cos has {sizes['m']} positions (axis m) but the longest sequence has {longest} tokens\n"
            "    Make cos and sin one row per position of the longest sequence."
        )


@torch.library.custom_op("packproof::rope", mutates_args=())
def _rope(x: Tensor, cos: Tensor, sin: Tensor, cu_seqlens: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    (T, H, K), (M, R), S = x.shape, cos.shape, len(cu_seqlens) - 1
    table = torch.promote_types(cos.dtype, sin.dtype)
    x, cos, sin = rows(x), cos.to(table).contiguous(), sin.to(table).contiguous()
    y = x.new_empty(T, H, K)
    tile = _tile(x.dtype)
    programs = triton.cdiv(T, tile["BLOCK_T"]) * triton.cdiv(H, tile["HEADS"])
    if programs:
        with torch.cuda.device_of(x):
            _rope_kernel[(programs,)](
                x, cos, sin, offsets(_OP, cu_seqlens, T), y, T, S, H, K, R, M, x.stride(0), x.stride(1),
                -1.0 if inverse else 1.0, interleaved, **tile, num_warps=_NUM_WARPS,
            )  # fmt: skip
    return y


@_rope.register_fake
def _(x, cos, sin, cu_seqlens, interleaved, inverse):
    _check(x, cos, sin, cu_seqlens, values=False)
    return x.new_empty(x.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cos, sin, cu_seqlens, ctx.interleaved, ctx.inverse = inputs
    if any(ctx.needs_input_grad[1:3]):
        raise ArgumentError(f"{_OP}: cos or sin requires a gradient but the kernel has none for them\n    Detach them.")
    ctx.save_for_backward(cos, sin, cu_seqlens)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    return _rope(dy, *ctx.saved_tensors, ctx.interleaved, not ctx.inverse), None, None, None, None, None


_rope.register_autograd(_backward, setup_context=_save)


def variants() -> list[Variant]:
    """Every compiled form of the kernel: dtypes, pairing, operands aligned to 16 bytes or not."""
    found = []
    for dtype, kind in POINTERS.items():
        for table in dict.fromkeys((kind, "*fp32")):
            for interleaved in (False, True):
                label = f"rope-{kind}-{table}-{'interleaved' if interleaved else 'halves'}".replace("*", "")
                pointers = {"x": kind, "y": kind, "cos": table, "sin": table, "cu_seqlens": "*i32"}
                constants = {"INTERLEAVED": interleaved, **_tile(dtype)}
                found += alignments(label, _rope_kernel, pointers, constants, _NUM_WARPS)
    return found
