"""Rotary position embedding, then Hadamard's transform, over a pack, in Triton: one pass, with the bytes of rope.

If all channels of a head are rotated in halves, one kernel does both. In backward it does the transform, then the
inverse rotation. Otherwise the kernels of rope and of hadamard run one after the other, with fp32 between them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from dataclasses import replace
from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.base.arguments import check_options, empty_output
from packproof.base.errors import checked_call
from packproof.base.signatures import ROPE_HADAMARD
from packproof.kernels.butterflies import count_thread_stages, tile_width, transform_across_tiles, transform_within_tile
from packproof.kernels.hadamard import DTYPES, bind_transform, factors_of, launch_hadamard
from packproof.kernels.launch import (
    POINTERS,
    ROW_WISE_PROMISES,
    align_rows,
    cdiv,
    is_on_host,
    launch,
    require_device,
    runs_interpreted,
    specializations,
)
from packproof.kernels.operators import differentiable, fake, operator, refuse_gradient
from packproof.kernels.rope import launch_rope
from packproof.kernels.sequences import locate, offsets
from packproof.kernels.variant import Variant
from packproof.refs.rotary_options import check_rotary_tables

PROMISES = ROW_WISE_PROMISES
INTERPRETED: dict[str, Any] = {}

_FUSED = (64, 128, 256)  # channels of a head
_UNIT = 16  # elements: heads start at multiples of it
_HEADS = 8  # of a program: it reads cos and sin once for all of them
_NUM_WARPS = 4
_STAGES = 3  # one head is transformed while the next ones are loaded
_SPILLS = 40  # bytes, for the widest heads: ptxas for sm_100 limits registers so that three programs run


@checked_call
def rope_hadamard(
    x: Tensor, cos: Tensor, sin: Tensor, signs: Tensor | None = None, *, cu_seqlens: Tensor,
    offsets: Tensor | None = None, interleaved: bool = False,
) -> Tensor:  # fmt: skip
    """`hadamard` of `rope`, without rounding between them, as for queries and keys that are quantised next.

    x: (t, h, k) in fp32, bf16 or fp16, computed in fp32. k is a power of two up to 256.
    cos, sin: (m, r), as in `rope`; they get no gradient.
    signs: (k,), as in `hadamard`; they get no gradient.
    cu_seqlens: int32 or int64 (s + 1,).
    offsets: (s,), as in `rope`.
    interleaved: as in `rope`.

    With 64, 128 or 256 channels, all of them rotated, without offsets and not interleaved, it is one kernel. Returns y
    (t, h, k) in x's dtype, zero in slack. No token's bits depend on another sequence. Nothing waits for a GPU: there
    the values of cu_seqlens and offsets are not checked, and a head at a position past the end of the tables is NaN.
    Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.kernels import rope_hadamard
    >>> x, cos, sin = torch.tensor([[[3.0, 1.0]]]), torch.zeros(1, 1), torch.ones(1, 1)  # with TRITON_INTERPRET=1
    >>> rope_hadamard(x, cos, sin, cu_seqlens=torch.tensor([0, 1])) * 2**0.5  # of (-1, 3)
    tensor([[[ 2.0000, -4.0000]]])
    """
    check_options(ROPE_HADAMARD, interleaved=interleaved)
    if not torch.compiler.is_compiling():
        _bind(x, cos, sin, signs, cu_seqlens, offsets, values=is_on_host(x))
        require_device(ROPE_HADAMARD.op, x, _rope_hadamard_kernel)
    result: Tensor = _rope_hadamard(x, cos, sin, signs, cu_seqlens, offsets, interleaved, False)
    return result


def _bind(
    x: Tensor, cos: Tensor, sin: Tensor, signs: Tensor | None, cu_seqlens: Tensor, starts: Tensor | None, *,
    values: bool,
) -> dict[str, int]:  # fmt: skip
    other_inputs = {"cos": cos, "sin": sin, "signs": signs, "offsets": starts}
    sizes = bind_transform(ROPE_HADAMARD, x, cu_seqlens, values=values, **other_inputs)
    check_rotary_tables(ROPE_HADAMARD.op, "x", sizes, cu_seqlens if values else None, starts)
    return sizes


@triton.jit
def _factors(signs, columns, K, has_signs):
    return tl.load(signs + columns, mask=(columns < K) & has_signs, other=1.0)


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "H", "M", "x_stride", "head_stride", "has_signs"])
def _rope_hadamard_kernel(
    x, cos, sin, signs, cu_seqlens, y, T, S, H, M, x_stride, head_stride, has_signs,
    INVERSE: tl.constexpr, K: tl.constexpr, UNIT: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr,
    OWN: tl.constexpr, HEADS: tl.constexpr, STAGES: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Rotate and transform up to HEADS heads of BLOCK_T tokens, in tiles of WIDTH = 2 ** LEVELS channels.

    INVERSE: transform, and rotate back. The first half of the tiles has the first channels of pairs. Strides count UNIT
    elements.
    """
    R: tl.constexpr = K // 2
    N: tl.constexpr = R // WIDTH  # tiles of a half
    groups = tl.cdiv(H, HEADS)
    t = (tl.program_id(0) // groups).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    first_head = tl.program_id(0) % groups * HEADS
    sequence, start, _ = locate(cu_seqlens, S, T, t)
    position = tl.where(sequence < S, t - start, -1)[:, None]
    channel = tl.arange(0, WIDTH)[None, :]
    read_mask = tl.broadcast_to(position >= 0, (BLOCK_T, WIDTH))
    write_mask = tl.broadcast_to((t < T)[:, None], (BLOCK_T, WIDTH))
    has_table_row = read_mask & (position < M)
    # NaN for a position past the tables, never a neighbour's row; 0 in slack, where y is promised to be 0
    absent_value = tl.where(position < 0, 0.0, float("nan"))
    rotations = ()
    for u in tl.static_range(N):
        row = position * R + (u * WIDTH + channel)
        c = tl.load(cos + row, mask=has_table_row, other=absent_value) * (K**-0.5)
        s = tl.load(sin + row, mask=has_table_row, other=absent_value) * (K**-0.5)
        rotations += ((c, -s if INVERSE else s),)
    source = x + ((t * x_stride + first_head.to(tl.int64) * head_stride) * UNIT)[:, None]
    target = y + ((t * H + first_head) * K)[:, None]
    # no hoisting of the signs: they would take registers from the heads
    for h in tl.range(0, tl.minimum(H - first_head, HEADS), num_stages=STAGES, disable_licm=True):
        tiles = ()
        for u in tl.static_range(2 * N):
            token = source + (h * head_stride * UNIT + u * WIDTH + channel)
            tiles += (tl.load(token, mask=read_mask, other=0.0, eviction_policy="evict_first").to(tl.float32),)
        if INVERSE:
            tiles = transform_across_tiles(tiles, 2 * N)
            new_tiles = ()
            for u in tl.static_range(2 * N):
                new_tiles += (
                    transform_within_tile(tiles[u], LEVELS, OWN)
                    * _factors(signs, u * WIDTH + channel, K, has_signs != 0),
                )
            tiles = new_tiles
        firsts, seconds = (), ()
        for u in tl.static_range(N):
            c, s = rotations[u]
            firsts += (tiles[u] * c - tiles[N + u] * s,)
            seconds += (tiles[u] * s + tiles[N + u] * c,)
        tiles = firsts + seconds
        if not INVERSE:
            new_tiles = ()
            for u in tl.static_range(2 * N):
                new_tiles += (tiles[u] * _factors(signs, u * WIDTH + channel, K, has_signs != 0),)
            tiles = transform_across_tiles(new_tiles, 2 * N)
        for u in tl.static_range(2 * N):
            tile = tiles[u] if INVERSE else transform_within_tile(tiles[u], LEVELS, OWN)
            tl.store(target + (h * K + u * WIDTH + channel), tile.to(y.dtype.element_ty), mask=write_mask)


def _tile(K: int, dtype: torch.dtype) -> dict[str, int]:
    if runs_interpreted(_rope_hadamard_kernel):
        channels, thread_stages = min(2, K // 2), 0
        shape = {"UNIT": 1, "HEADS": 2, "STAGES": 1, "BLOCK_T": 16}
    else:
        channels, thread_stages = (
            tile_width(dtype.itemsize),
            count_thread_stages(tile_width(dtype.itemsize), dtype.itemsize),
        )
        shape = {"UNIT": _UNIT, "HEADS": _HEADS, "STAGES": _STAGES, "BLOCK_T": _NUM_WARPS * 8}
    return {"K": K, "WIDTH": channels, "LEVELS": channels.bit_length() - 1, "OWN": thread_stages, **shape}


def _is_fused(K: int, R: int, starts: Tensor | None, interleaved: bool) -> bool:
    fits = K >= 2 if runs_interpreted(_rope_hadamard_kernel) else K in _FUSED
    return fits and 2 * R == K and starts is None and not interleaved


@operator
def _rope_hadamard(
    x: Tensor, cos: Tensor, sin: Tensor, signs: Tensor | None, cu_seqlens: Tensor, starts: Tensor | None,
    interleaved: bool, inverse: bool,
) -> Tensor:  # fmt: skip
    if _is_fused(x.shape[2], cos.shape[1], starts, interleaved):
        return _launch(x, cos, sin, signs, cu_seqlens, inverse)
    op, wide = ROPE_HADAMARD.op, x.float()
    if inverse:
        wide = launch_hadamard(op, wide, signs, cu_seqlens, inverse)
    [wide] = launch_rope(op, [wide], cos.float(), sin.float(), cu_seqlens, starts, interleaved, inverse)
    return (wide if inverse else launch_hadamard(op, wide, signs, cu_seqlens, inverse)).to(x.dtype)


def _launch(x: Tensor, cos: Tensor, sin: Tensor, signs: Tensor | None, cu_seqlens: Tensor, inverse: bool) -> Tensor:
    (T, H, K), S = x.shape, len(cu_seqlens) - 1
    y, tile = x.new_empty(x.shape), _tile(K, x.dtype)
    x = align_rows(x, tile["UNIT"])
    if programs := cdiv(T, tile["BLOCK_T"]) * cdiv(H, tile["HEADS"]):
        arguments = {
            **{"x": x, "cos": factors_of(cos), "sin": factors_of(sin)},
            "signs": x.new_empty(0, dtype=torch.float32) if signs is None else factors_of(signs),
            **{"cu_seqlens": offsets(ROPE_HADAMARD.op, cu_seqlens, T), "y": y, "T": T, "S": S, "H": H, "M": len(cos)},
            **{"x_stride": x.stride(0) // tile["UNIT"], "head_stride": x.stride(1) // tile["UNIT"]},
            **{"has_signs": int(signs is not None), "INVERSE": inverse, **tile},
        }
        launch(_rope_hadamard_kernel, (programs,), arguments, num_warps=_NUM_WARPS)
    return y


@fake(_rope_hadamard)
def _(x, cos, sin, signs, cu_seqlens, starts, interleaved, inverse):
    return empty_output(ROPE_HADAMARD, "y", x, _bind(x, cos, sin, signs, cu_seqlens, starts, values=False))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cos, sin, signs, cu_seqlens, starts, ctx.interleaved, ctx.inverse = inputs
    refuse_gradient(ROPE_HADAMARD.op, **dict(zip(("cos", "sin", "signs"), ctx.needs_input_grad[1:4], strict=True)))
    ctx.save_for_backward(cos, sin, signs, cu_seqlens, starts)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    return _rope_hadamard(dy, *ctx.saved_tensors, ctx.interleaved, not ctx.inverse), *[None] * 7


differentiable(_rope_hadamard, _backward, _save)


def variants() -> list[Variant]:
    """Every compiled form of the kernel: dtypes, head dims, forward and back."""
    result = []
    for dtype, K, inverse in product(DTYPES, _FUSED, (False, True)):
        pointers: dict[str, str | None] = dict.fromkeys(("cos", "sin", "signs"), "*fp32")
        pointers |= {"x": POINTERS[dtype], "y": POINTERS[dtype], "cu_seqlens": "*i32"}
        label = f"rope-hadamard-{POINTERS[dtype][1:]}-{K}{'-back' if inverse else ''}"
        constants = {"INVERSE": inverse, **_tile(K, dtype)}
        form = specializations(label, _rope_hadamard_kernel, pointers, constants, _NUM_WARPS)[0]
        result.append(replace(form, spills=_SPILLS if K == max(_FUSED) else 0))
    return result
