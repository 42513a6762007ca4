"""Rotary position embedding over a pack, in Triton: rotated by the position in a sequence, in backward rotated back."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.base.arguments import bind, check_options, empty_output
from packproof.base.errors import checked_call
from packproof.base.signatures import ROPE, ROPE_QK, Signature
from packproof.kernels.launch import (
    POINTERS,
    ROW_WISE_PROMISES,
    cdiv,
    compute_dtype,
    contiguous_rows,
    is_on_host,
    launch,
    require_device,
    runs_interpreted,
    specializations,
    widen,
)
from packproof.kernels.operators import differentiable, fake, operator, refuse_gradient
from packproof.kernels.sequences import locate, offsets
from packproof.kernels.variant import Variant
from packproof.refs.rotary_options import check_rotary_tables

PROMISES = ROW_WISE_PROMISES
INTERPRETED: dict[str, Any] = {}

_HEADS = 8  # of a program: it reads cos and sin once for all of them
_STEP = 2  # heads loaded at once; twice as many where pairs are interleaved
_BLOCK_R = 64
_NUM_WARPS = 4
_TILE_INTERPRETED = {"HEADS": 4, "STEP": 2, "STAGES": 1, "BLOCK_T": 16, "BLOCK_R": 4}  # tests are small


@checked_call
def rope(
    x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, offsets: Tensor | None = None, interleaved: bool = False
) -> Tensor:
    """Rotate the first 2r channels of each head. Positions restart in each sequence; the other channels pass through.

    x: (t, h, k) in fp64, fp32, bf16 or fp16; the last two compute in fp32.
    cos, sin: (m, r), one row per position of a token, in x's dtype or fp32, with 2r <= k; they get no gradient.
    cu_seqlens: int32 or int64 (s + 1,).
    offsets: int32 or int64 (s,), the position of each sequence's first token, for example the number of its tokens in a
    cache; 0 if left out. From a negative position on, as with left padding, tokens are not rotated before position 0.
    interleaved: channel 2i pairs with 2i + 1 (GPT-J); otherwise channel i pairs with i + r (GPT-NeoX).

    Returns y (t, h, k) in x's dtype, zero in slack. The bits of a sequence's values and gradients do not depend on the
    others. Nothing waits for a GPU: there the values of cu_seqlens and offsets are not checked, and the rotated
    channels of a position past the end of the tables are NaN. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.kernels import rope
    >>> angle = torch.arange(3)[:, None] * torch.pi / 2  # a quarter of a circle for each position
    >>> x = torch.tensor([1.0, 0]).expand(4, 1, 2)  # on a CPU with TRITON_INTERPRET=1
    >>> rope(x, angle.cos(), angle.sin(), cu_seqlens=torch.tensor([0, 1, 4])).flatten(1).round().int()
    tensor([[ 1,  0],
            [ 1,  0],
            [ 0,  1],
            [-1,  0]], dtype=torch.int32)
    >>> starts = torch.tensor([2, -1])  # the last sequence has one row of padding
    >>> rope(x, angle.cos(), angle.sin(), cu_seqlens=torch.tensor([0, 1, 4]), offsets=starts).flatten(1).round().int()
    tensor([[-1,  0],
            [ 1,  0],
            [ 1,  0],
            [ 0,  1]], dtype=torch.int32)
    """
    check_options(ROPE, interleaved=interleaved)
    if not torch.compiler.is_compiling():
        _bind(ROPE, {"x": x}, cos, sin, cu_seqlens, offsets, values=is_on_host(x))
        require_device(ROPE.op, x, _rope_kernel)
    result: Tensor = _rope(x, cos, sin, cu_seqlens, offsets, interleaved, False)
    return result


@checked_call
def rope_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, offsets: Tensor | None = None,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rotate queries (t, hq, k) and keys (t, hk, k) of one dtype in one launch, to the bits of `rope` on each.

    >>> import torch
    >>> from packproof.kernels import rope_qk
    >>> q, k, table = torch.ones(5, 4, 2), torch.ones(5, 1, 2), torch.ones(3, 1)  # on a CPU with TRITON_INTERPRET=1
    >>> y_q, y_k = rope_qk(q, k, table, table, cu_seqlens=torch.tensor([0, 2, 5]))
    >>> y_q.shape, y_k.shape
    (torch.Size([5, 4, 2]), torch.Size([5, 1, 2]))
    """
    check_options(ROPE_QK, interleaved=interleaved)
    if not torch.compiler.is_compiling():
        _bind(ROPE_QK, {"q": q, "k": k}, cos, sin, cu_seqlens, offsets, values=is_on_host(q))
        require_device(ROPE_QK.op, q, _rope_kernel)
    result: tuple[Tensor, Tensor] = _rope_qk(q, k, cos, sin, cu_seqlens, offsets, interleaved, False)
    return result


@triton.jit
def _load_pairs(token, channel, R, mask, INTERLEAVED: tl.constexpr):
    """Both members of pairs of channels: [BLOCK_T, BLOCK_R] each."""
    first_members = tl.load(token + channel, mask=mask, other=0.0, eviction_policy="evict_first")
    if INTERLEAVED:
        first_members, second_members = tl.split(
            tl.reshape(first_members, (first_members.shape[0], first_members.shape[1] // 2, 2))
        )
    else:
        second_members = tl.load(token + (channel + R), mask=mask, other=0.0, eviction_policy="evict_first")
    return first_members, second_members


@triton.jit
def _store_pairs(token, channel, R, mask, first_members, second_members, INTERLEAVED: tl.constexpr):
    """Store pairs at the addresses of `_load_pairs`."""
    first_members, second_members = first_members.to(token.dtype.element_ty), second_members.to(token.dtype.element_ty)
    if INTERLEAVED:
        pairs = tl.join(first_members, second_members)
        tl.store(token + channel, tl.reshape(pairs, (pairs.shape[0], pairs.shape[1] * 2)), mask=mask)
    else:
        tl.store(token + channel, first_members, mask=mask)
        tl.store(token + (channel + R), second_members, mask=mask)


@triton.jit(do_not_specialize=["cu_seqlens", "starts", "T", "S", "H", "H2", "M", "sign"])
def _rope_kernel(
    x, x2, cos, sin, cu_seqlens, starts, y, y2, T, S, H, H2, K, R, M,
    x_stride, x2_stride, head_stride, head2_stride, sign, INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Rotate the pairs of HEADS heads of BLOCK_T tokens, BLOCK_R pairs at a time, and copy the channels after them.

    The heads of x2 follow the heads of x; there are none if H2 is 0. A program loads STEP heads before it stores the
    first, so a thread waits for all of them at once. With two STAGES the next heads are being loaded by then. A token
    has a 64-bit address and its channels 32-bit offsets; this leaves registers for more threads.
    starts (S,): the position of each sequence's first token, 64-bit, or None for 0.
    """
    groups = tl.cdiv(H, HEADS)
    all_groups = groups + tl.cdiv(H2, HEADS)
    t = (tl.program_id(0) // all_groups).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    group = tl.program_id(0) % all_groups
    is_second_tensor = group >= groups
    x, y = tl.where(is_second_tensor, x2, x), tl.where(is_second_tensor, y2, y)
    x_stride, head_stride = (
        tl.where(is_second_tensor, x2_stride, x_stride),
        tl.where(is_second_tensor, head2_stride, head_stride),
    )
    first_head = tl.where(is_second_tensor, group - groups, group) * HEADS
    H = tl.where(is_second_tensor, H2, H)
    heads = tl.minimum(H - first_head, HEADS)
    sequence, start, _ = locate(cu_seqlens, S, T, t)
    position = tl.where(sequence < S, t - start, -1)
    if starts is not None:
        position += tl.load(starts + sequence, mask=sequence < S, other=0)
        position = tl.minimum(tl.maximum(position, -1), 2147483647)  # before it has 32 bits
    position = position.to(tl.int32)[:, None]
    source = x + first_head.to(tl.int64) * head_stride + (t * x_stride)[:, None]
    target = y + first_head.to(tl.int64) * K + (t * H * K)[:, None]
    EACH: tl.constexpr = 2 if INTERLEAVED else 1  # adjacent channels of a pair
    inside = position >= 0 if starts is None else (sequence < S)[:, None]
    alive = tl.broadcast_to(inside, (BLOCK_T, EACH * BLOCK_R))
    is_stored = tl.broadcast_to((t < T)[:, None], (BLOCK_T, EACH * BLOCK_R))
    # no hoisting of the loads of a block of pairs: they would take registers from the heads
    for block in tl.range(0, R, BLOCK_R, disable_licm=True):
        pair = block + tl.arange(0, BLOCK_R)[None, :]
        has_table_row = (position >= 0) & (position < M) & (pair < R)
        # NaN for a position past the tables, never a neighbour's row; 0 in slack, where y is promised to be 0
        absent_value = tl.where(position < 0, 0.0, float("nan"))
        row = position.to(tl.int64) * R
        row += pair
        c = widen(tl.load(cos + row, mask=has_table_row, other=absent_value))
        s = widen(tl.load(sin + row, mask=has_table_row, other=absent_value)) * sign
        channel = block * EACH + tl.arange(0, EACH * BLOCK_R)[None, :]
        read_mask, write_mask = alive & (channel < R * EACH), is_stored & (channel < R * EACH)
        for h in tl.range(0, heads, STEP, num_stages=STAGES):
            pairs = ()
            for u in tl.static_range(STEP):
                mask = read_mask & (h + u < heads)
                pairs += (_load_pairs(source, (h + u) * head_stride + channel, R, mask, INTERLEAVED),)
            for u in tl.static_range(STEP):
                mask = write_mask & (h + u < heads)
                a, b = widen(pairs[u][0]), widen(pairs[u][1])
                target_channels, rotated = (h + u) * K + channel, (a * c - b * s, a * s + b * c)
                if starts is not None:  # padding stays as it is; 0 * inf: select, never multiply
                    rotated = tl.where(position < 0, a, rotated[0]), tl.where(position < 0, b, rotated[1])
                _store_pairs(target, target_channels, R, mask, rotated[0], rotated[1], INTERLEAVED)
    for block in range(2 * R, K, EACH * BLOCK_R):
        channel = block + tl.arange(0, EACH * BLOCK_R)[None, :]
        read_mask, write_mask = alive & (channel < K), is_stored & (channel < K)
        for h in range(0, heads, STEP):
            values = ()
            for u in tl.static_range(STEP):
                mask = read_mask & (h + u < heads)
                values += (tl.load(source + ((h + u) * head_stride + channel), mask=mask, other=0.0),)
            for u in tl.static_range(STEP):
                mask = write_mask & (h + u < heads)
                tl.store(target + ((h + u) * K + channel), values[u], mask=mask)


def _tile(dtype: torch.dtype, interleaved: bool) -> dict[str, int]:
    """Sizes of a tile for which each load of a thread has 16 bytes."""
    if runs_interpreted(_rope_kernel):
        return _TILE_INTERPRETED
    tokens = _NUM_WARPS * 32 * 16 // dtype.itemsize // _BLOCK_R  # a load each for their channels, or first halves
    if interleaved:
        return {"HEADS": _HEADS, "STEP": 2 * _STEP, "STAGES": 1, "BLOCK_T": tokens // 2, "BLOCK_R": _BLOCK_R}
    return {"HEADS": _HEADS, "STEP": _STEP, "STAGES": 2, "BLOCK_T": tokens, "BLOCK_R": _BLOCK_R}


def _bind(
    signature: Signature, rotated: dict[str, Tensor], cos: Tensor, sin: Tensor, cu_seqlens: Tensor,
    starts: Tensor | None, values: bool,
) -> dict[str, int]:  # fmt: skip
    sizes = bind(signature, cu_seqlens, **rotated, cos=cos, sin=sin, offsets=starts, values=values)
    check_rotary_tables(signature.op, next(iter(rotated)), sizes, cu_seqlens if values else None, starts)
    return sizes


def _with_32_bit_offsets(x: Tensor, heads: int) -> Tensor:
    """The tensor itself if 32-bit offsets reach over `heads` of its heads, otherwise a contiguous copy."""
    x = contiguous_rows(x)
    return x if x.stride(1) * heads + x.shape[2] < 2**31 else x.contiguous()


def launch_rope(
    op: str, tensors: list[Tensor], cos: Tensor, sin: Tensor, cu_seqlens: Tensor, starts: Tensor | None,
    interleaved: bool, inverse: bool,
) -> list[Tensor]:  # fmt: skip
    """Rotate one tensor, or two."""
    (T, _, K), (M, R), S = tensors[0].shape, cos.shape, len(cu_seqlens) - 1
    table = torch.promote_types(cos.dtype, sin.dtype)
    if starts is not None:  # with starts the kernel has forms for tables of the compute dtype only, with the same bits
        starts, table = starts.to(torch.int64).contiguous(), compute_dtype(tensors[0].dtype)
    cos, sin = cos.to(table).contiguous(), sin.to(table).contiguous()
    tile = _tile(tensors[0].dtype, interleaved)
    xs = [_with_32_bit_offsets(x, tile["HEADS"]) for x in tensors]
    ys = [x.new_empty(x.shape) for x in xs]
    H, H2 = xs[0].shape[1], sum(x.shape[1] for x in xs[1:])
    programs = cdiv(T, tile["BLOCK_T"]) * (cdiv(H, tile["HEADS"]) + cdiv(H2, tile["HEADS"]))
    if programs:
        arguments = {
            **{"x": xs[0], "x2": xs[-1], "cos": cos, "sin": sin, "cu_seqlens": offsets(op, cu_seqlens, T)},
            **{"starts": starts, "y": ys[0], "y2": ys[-1], "T": T, "S": S, "H": H, "H2": H2, "K": K, "R": R, "M": M},
            **{"x_stride": xs[0].stride(0), "x2_stride": xs[-1].stride(0)},
            **{"head_stride": xs[0].stride(1), "head2_stride": xs[-1].stride(1)},
            **{"sign": -1.0 if inverse else 1.0, "INTERLEAVED": interleaved, **tile},
        }
        launch(_rope_kernel, (programs,), arguments, num_warps=_NUM_WARPS)
    return ys


@operator
def _rope(
    x: Tensor, cos: Tensor, sin: Tensor, cu_seqlens: Tensor, starts: Tensor | None, interleaved: bool, inverse: bool
) -> Tensor:
    return launch_rope(ROPE.op, [x], cos, sin, cu_seqlens, starts, interleaved, inverse)[0]


@operator
def _rope_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, cu_seqlens: Tensor, starts: Tensor | None,
    interleaved: bool, inverse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    rotated_q, rotated_k = launch_rope(ROPE_QK.op, [q, k], cos, sin, cu_seqlens, starts, interleaved, inverse)
    return rotated_q, rotated_k


@fake(_rope)
def _(x, cos, sin, cu_seqlens, starts, interleaved, inverse):
    sizes = _bind(ROPE, {"x": x}, cos, sin, cu_seqlens, starts, values=False)
    return empty_output(ROPE, "y", x, sizes)


@fake(_rope_qk)
def _(q, k, cos, sin, cu_seqlens, starts, interleaved, inverse):
    sizes = _bind(ROPE_QK, {"q": q, "k": k}, cos, sin, cu_seqlens, starts, values=False)
    return empty_output(ROPE_QK, "y_q", q, sizes), empty_output(ROPE_QK, "y_k", q, sizes)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, cos, sin, cu_seqlens, starts, ctx.interleaved, ctx.inverse = inputs
    needed = ctx.needs_input_grad[len(tensors) :]
    refuse_gradient(ROPE.op, cos=needed[0], sin=needed[1])
    ctx.save_for_backward(cos, sin, cu_seqlens, starts)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    return _rope(dy, *ctx.saved_tensors, ctx.interleaved, not ctx.inverse), *[None] * 6


def _backward_qk(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor | None, ...]:
    gradients = _rope_qk(dq, dk, *ctx.saved_tensors, ctx.interleaved, not ctx.inverse)
    return *gradients, *[None] * 6


differentiable(_rope, _backward, _save)
differentiable(_rope_qk, _backward_qk, _save)


def variants() -> list[Variant]:
    """Every compiled form of the kernel: dtypes, pairing, with starts or without, aligned to 16 bytes or not."""
    result = []
    for dtype, kind in POINTERS.items():
        tables: list[tuple[str, str | None]] = [(table, None) for table in dict.fromkeys((kind, "*fp32"))]
        tables += [(POINTERS[compute_dtype(dtype)], "*i64")]
        for (table, starts), interleaved in product(tables, (False, True)):
            label = f"rope-{kind}-{table}-{'interleaved' if interleaved else 'halves'}{'-starts' if starts else ''}"
            pointers: dict[str, str | None] = dict.fromkeys(("x", "x2", "y", "y2"), kind)
            pointers |= {"cos": table, "sin": table, "cu_seqlens": "*i32", "starts": starts, "sign": "fp32"}
            constants = {"INTERLEAVED": interleaved, **_tile(dtype, interleaved)}
            result += specializations(label.replace("*", ""), _rope_kernel, pointers, constants, _NUM_WARPS)
    return result
