"""Rotary position embedding over a pack, in Triton: forward turns by the position in a sequence, backward back."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

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
_HEADS = 16  # of a program, which reads cos and sin once for all of them
_STEP = 2  # of them that it reads at once, and twice as many where pairs are interleaved
_BLOCK_R = 64
_NUM_WARPS = 4
_TILE_INTERPRETED = {"HEADS": 4, "STEP": 2, "BLOCK_T": 16, "BLOCK_R": 4}  # tests are small, and want more than one


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


@triton.jit
def _read(token, channel, R, mask, INTERLEAVED: tl.constexpr):
    """Both members of pairs of channels: [BLOCK_T, BLOCK_R] each."""
    first = tl.load(token + channel, mask=mask, other=0.0, eviction_policy="evict_first")
    if INTERLEAVED:
        first, second = tl.split(tl.reshape(first, (first.shape[0], first.shape[1] // 2, 2)))
    else:
        second = tl.load(token + (channel + R), mask=mask, other=0.0, eviction_policy="evict_first")
    return first, second


@triton.jit
def _write(token, channel, R, mask, first, second, INTERLEAVED: tl.constexpr):
    """Where `_read` would find them."""
    if INTERLEAVED:
        pairs = tl.join(first, second)
        tl.store(token + channel, tl.reshape(pairs, (pairs.shape[0], pairs.shape[1] * 2)), mask=mask)
    else:
        tl.store(token + channel, first, mask=mask)
        tl.store(token + (channel + R), second, mask=mask)


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "H", "M", "sign"])
def _rope_kernel(
    x, cos, sin, cu_seqlens, y, T, S, H, K, R, M, x_stride, head_stride, sign, INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr, STEP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Turn the pairs of HEADS heads of BLOCK_T tokens, BLOCK_R pairs at a time, and copy the channels behind them.

    STEP heads are read before the first of them is written, so that a thread waits for all of them at once. A token has
    a 64-bit address, and its channels have offsets of 32 bits, which leaves registers for more threads.
    """
    groups = tl.cdiv(H, HEADS)
    t = (tl.program_id(0) // groups).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    first = tl.program_id(0) % groups * HEADS
    heads = tl.minimum(H - first, HEADS)
    sequence, start, _ = locate(cu_seqlens, S, T, t)
    position = tl.where(sequence < S, t - start, -1)[:, None]
    source = x + first.to(tl.int64) * head_stride + (t * x_stride)[:, None]
    target = y + first.to(tl.int64) * K + (t * H * K)[:, None]
    EACH: tl.constexpr = 2 if INTERLEAVED else 1  # channels of a pair that lie side by side
    lane = tl.arange(0, EACH * BLOCK_R)[None, :]
    alive = tl.broadcast_to(position >= 0, (BLOCK_T, EACH * BLOCK_R))
    stored = tl.broadcast_to((t < T)[:, None], (BLOCK_T, EACH * BLOCK_R))
    for block in range(0, R, BLOCK_R):
        pair = block + tl.arange(0, BLOCK_R)[None, :]
        known = (position >= 0) & (position < M) & (pair < R)
        # a position past the tables is NaN, never a neighbour's row; in slack, 0 times 0 is the zero that is promised
        unknown = tl.where(position < 0, 0.0, float("nan"))
        c = widen(tl.load(cos + position * R + pair, mask=known, other=unknown))
        s = widen(tl.load(sin + position * R + pair, mask=known, other=unknown)) * sign
        channel = block * EACH + lane
        read, write = alive & (channel < R * EACH), stored & (channel < R * EACH)
        for h in range(0, heads, STEP):
            pairs = ()
            for u in tl.static_range(STEP):
                mask = read & (h + u < heads)
                pairs += (_read(source, (h + u) * head_stride + channel, R, mask, INTERLEAVED),)
            for u in tl.static_range(STEP):
                mask = write & (h + u < heads)
                x1, x2 = widen(pairs[u][0]), widen(pairs[u][1])
                y1 = (x1 * c - x2 * s).to(y.dtype.element_ty)
                y2 = (x1 * s + x2 * c).to(y.dtype.element_ty)
                _write(target, (h + u) * K + channel, R, mask, y1, y2, INTERLEAVED)
    for block in range(2 * R, K, EACH * BLOCK_R):
        channel = block + lane
        read, write = alive & (channel < K), stored & (channel < K)
        for h in range(0, heads, STEP):
            values = ()
            for u in tl.static_range(STEP):
                mask = read & (h + u < heads)
                values += (tl.load(source + ((h + u) * head_stride + channel), mask=mask, other=0.0),)
            for u in tl.static_range(STEP):
                mask = write & (h + u < heads)
                tl.store(target + ((h + u) * K + channel), values[u], mask=mask)


def _tile(dtype: torch.dtype, interleaved: bool) -> dict[str, int]:
    """Where each load of a thread has 16 bytes."""
    if interpreted(_rope_kernel):
        return _TILE_INTERPRETED
    tokens = _NUM_WARPS * 32 * 16 // dtype.itemsize // _BLOCK_R  # whose channels, or first halves, are one such load
    if interleaved:
        return {"HEADS": _HEADS, "STEP": 2 * _STEP, "BLOCK_T": tokens // 2, "BLOCK_R": _BLOCK_R}
    return {"HEADS": _HEADS, "STEP": _STEP, "BLOCK_T": tokens, "BLOCK_R": _BLOCK_R}


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
    tile = _tile(x.dtype, interleaved)
    if x.stride(1) * tile["HEADS"] + K >= 2**31:  # too far for offsets of 32 bits
        x = x.contiguous()
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
                pointers = {"x": kind, "y": kind, "cos": table, "sin": table, "cu_seqlens": "*i32", "sign": "fp32"}
                constants = {"INTERLEAVED": interleaved, **_tile(dtype, interleaved)}
                found += alignments(label, _rope_kernel, pointers, constants, _NUM_WARPS)
    return found
