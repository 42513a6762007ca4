"""Causal depthwise convolution over a pack, forward and backward, in Triton.

A program owns a tile of tokens and channels and reads, for each tap, the tile shifted in time: an element depends on
its own window alone and its taps are added oldest first, so that its bits cannot depend on the pack. Taps before a
sequence's first token come from its initial state, in the same order.

Backward, with pre = bias + Σ_j weight[:, j] x[t - (w-1) + j] and g = dy act'(pre), for the positions q of a sequence
and, in front of it, the w-1 positions of its initial state:
    dx[q] = Σ_k g[q + k] weight[:, w-1-k]  (+ the gradient of the final state, where it holds q)
    dweight[:, j] = Σ_t g[t] x[t - (w-1) + j],   dbias = Σ_t g[t]
The sums over tokens are taken per tile and then over tiles, both in fixed order.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.kernels.launch import (
    POINTERS,
    alignments,
    differentiable_once,
    on_host,
    require_device,
    rows,
    widen,
    working,
)
from packproof.kernels.sequences import bounds, locate, offsets
from packproof.kernels.variant import Variant
from packproof.refs.arguments import bind, check_option

Activation = Literal["silu"] | None

PROMISES: dict[str, Any] = {"grid": "token", "chunk": 32, "compute": "fp32", "deterministic": True, "isolated": True}
INTERPRETED: dict[str, Any] = {}

_OP = "causal_conv1d"
_BLOCK_T = 32  # tokens, rows of states, or tiles of partial sums
_TENSORS = ("x", "weight", "bias", "y", "final_states", "dy", "dfinal", "dx", "dstates", "dweight", "dbias")


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    activation: Activation = None,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolve each sequence of a pack with its own past only.

    x: (t, d). weight: (d, w), the last tap meets the token itself. bias: (d,). initial_states: (s, d, w-1), the inputs
    before each sequence, oldest first; zeros if left out. All of one dtype: fp64, fp32, bf16 or fp16 (the last two
    compute in fp32). cu_seqlens: int32 or int64 (s + 1,). activation: None or "silu".

    Returns y (t, d), zero in slack, and with return_final_states also the last w-1 inputs of each sequence (s, d, w-1),
    which begin with part of the initial state where the sequence is shorter. Differentiable once. The bits of a
    sequence's values and gradients do not depend on the others. Nothing waits for a GPU, so that the values of
    cu_seqlens are not checked there. Raises ArgumentError and LayoutError.
    """
    check_option(_OP, "activation", activation, (None, "silu"))
    if not torch.compiler.is_compiling():
        _bind(x, weight, bias, cu_seqlens, initial_states, values=on_host(x))
        require_device(_OP, x, _causal_conv1d_fwd_kernel)
    y, final_states = _causal_conv1d(
        x, weight, bias, cu_seqlens, initial_states, activation == "silu", return_final_states
    )
    return (y, final_states) if return_final_states else y


@triton.jit
def _tap(x, states, row, start, sequence, alive, d, D, W, x_stride):
    """The inputs at `row` of sequences that begin at `start`, further back the initial state: [rows, BLOCK_D]."""
    channels = (d < D)[None, :]
    inside = (alive & (row >= start))[:, None] & channels
    value = tl.load(x + row[:, None] * x_stride + d[None, :], mask=inside, other=0.0)
    if states is not None:
        slot = row - start + (W - 1)
        before = (alive & (row < start) & (slot >= 0))[:, None] & channels
        offset = (sequence * D * (W - 1) + slot)[:, None] + (d * (W - 1))[None, :]
        value = tl.load(states + offset, mask=before, other=value)
    return widen(value)


@triton.jit
def _weight_of(weight, d, j, D, W):
    """Tap j of the channels: [1, BLOCK_D]."""
    return widen(tl.load(weight + d * W + j, mask=d < D, other=0.0))[None, :]


@triton.jit
def _pre_activation(x, weight, bias, states, t, start, sequence, alive, d, D, W, x_stride, has_bias):
    """bias + Σ_j weight[:, j] x[t - (w-1) + j], oldest tap first: [BLOCK_T, BLOCK_D]."""
    offset = widen(tl.load(bias + d, mask=(d < D) & (has_bias != 0), other=0.0))
    pre = tl.broadcast_to(offset[None, :], (t.shape[0], d.shape[0]))
    for j in range(W):
        value = _tap(x, states, t - (W - 1) + j, start, sequence, alive, d, D, W, x_stride)
        pre += value * _weight_of(weight, d, j, D, W)
    return pre


@triton.jit
def _input_gradient(g, weight, dfinal, q, start, end, sequence, alive, d, D, W, g_stride, has_final):
    """dx at position q, which may lie in the initial state: [rows, BLOCK_D]."""
    channels = (d < D)[None, :]
    dtype: tl.constexpr = tl.float64 if weight.dtype.element_ty == tl.float64 else tl.float32
    dx = tl.zeros((q.shape[0], d.shape[0]), dtype)
    for k in range(W):
        row = q + k
        inside = (alive & (row >= start) & (row < end))[:, None] & channels
        value = tl.load(g + row[:, None] * g_stride + d[None, :], mask=inside, other=0.0)
        dx += value.to(dtype) * _weight_of(weight, d, W - 1 - k, D, W)
    if has_final != 0:
        slot = q - end + (W - 1)
        held = (alive & (slot >= 0))[:, None] & channels
        offset = (sequence * D * (W - 1) + slot)[:, None] + (d * (W - 1))[None, :]
        dx += tl.load(dfinal + offset, mask=held, other=0.0).to(dtype)
    return dx


@triton.jit
def _tile(D, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
    """This program's rows and channels, in int64; channels turn fastest, so that neighbours share rows of memory."""
    blocks = tl.cdiv(D, BLOCK_D)
    tile = tl.program_id(0) // blocks
    row = tile.to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    return tile, row, (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)


@triton.jit
def _state_rows(row, cu_seqlens, S, T, W):
    """Rows of the states (s, w-1): sequence, slot, first token, end and whether there is such a row."""
    sequence = row // (W - 1)
    start, end = bounds(cu_seqlens, S, T, sequence)
    return sequence, row % (W - 1), start, end, sequence < S


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "W", "has_bias", "silu"])
def _causal_conv1d_fwd_kernel(
    x, weight, bias, states, cu_seqlens, y, T, S, D, W, x_stride, has_bias, silu,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    _, t, d = _tile(D, BLOCK_T, BLOCK_D)
    sequence, start, _ = locate(cu_seqlens, S, T, t)
    alive = sequence < S
    value = _pre_activation(x, weight, bias, states, t, start, sequence, alive, d, D, W, x_stride, has_bias)
    if silu != 0:
        value *= tl.sigmoid(value)
    value = tl.where(alive[:, None], value, 0.0)
    tl.store(y + t[:, None] * D + d[None, :], value.to(y.dtype.element_ty), mask=(t < T)[:, None] & (d < D)[None, :])


@triton.jit(do_not_specialize=["x", "states", "final_states", "cu_seqlens", "T", "S", "D", "W", "x_stride"])
def _causal_conv1d_fwd_states_kernel(
    x, states, cu_seqlens, final_states, T, S, D, W, x_stride, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr
):
    _, row, d = _tile(D, BLOCK_T, BLOCK_D)
    sequence, slot, start, end, alive = _state_rows(row, cu_seqlens, S, T, W)
    value = _tap(x, states, end - (W - 1) + slot, start, sequence, alive, d, D, W, x_stride)
    offset = (sequence * D * (W - 1) + slot)[:, None] + (d * (W - 1))[None, :]
    mask = alive[:, None] & (d < D)[None, :]
    tl.store(final_states + offset, value.to(final_states.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "W", "has_bias", "silu"])
def _causal_conv1d_bwd_pre_kernel(
    x, weight, bias, states, cu_seqlens, dy, g, partial, T, S, D, W, x_stride, dy_stride, has_bias, silu,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """g = dy act'(pre), and this tile's part of dweight and dbias: partial (tiles, w+1, d), the bias last."""
    tile, t, d = _tile(D, BLOCK_T, BLOCK_D)
    sequence, start, _ = locate(cu_seqlens, S, T, t)
    alive = sequence < S
    mask = alive[:, None] & (d < D)[None, :]
    value = tl.load(dy + t[:, None] * dy_stride + d[None, :], mask=mask, other=0.0).to(partial.dtype.element_ty)
    if silu != 0:
        pre = _pre_activation(x, weight, bias, states, t, start, sequence, alive, d, D, W, x_stride, has_bias)
        gate = tl.sigmoid(pre)
        value = tl.where(mask, value * (gate * (1.0 + pre * (1.0 - gate))), 0.0)
        tl.store(g + t[:, None] * D + d[None, :], value, mask=mask)
    here = partial + tile.to(tl.int64) * (W + 1) * D + d
    tl.store(here + W * D, tl.sum(value, 0), mask=d < D)
    for j in range(W):
        tap = _tap(x, states, t - (W - 1) + j, start, sequence, alive, d, D, W, x_stride)
        tl.store(here + j * D, tl.sum(value * tap, 0), mask=d < D)


@triton.jit(do_not_specialize=["partial", "dweight", "dbias", "n_tiles", "D", "W"])
def _causal_conv1d_bwd_weight_kernel(
    partial, dweight, dbias, n_tiles, D, W, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Add the tiles' parts, in an order that their number alone decides."""
    tap, _, d = _tile(D, 1, BLOCK_D)
    total = tl.zeros((BLOCK_T, BLOCK_D), partial.dtype.element_ty)
    for first in range(0, n_tiles, BLOCK_T):
        tile = first + tl.arange(0, BLOCK_T)
        here = partial + (tile.to(tl.int64)[:, None] * (W + 1) + tap) * D + d[None, :]
        total += tl.load(here, mask=(tile < n_tiles)[:, None] & (d < D)[None, :], other=0.0)
    value = tl.sum(total, 0)
    if tap < W:
        tl.store(dweight + d * W + tap, value.to(dweight.dtype.element_ty), mask=d < D)
    else:
        tl.store(dbias + d, value.to(dbias.dtype.element_ty), mask=d < D)


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "W", "has_final"])
def _causal_conv1d_bwd_x_kernel(
    g, weight, dfinal, cu_seqlens, dx, T, S, D, W, g_stride, has_final, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr
):
    _, t, d = _tile(D, BLOCK_T, BLOCK_D)
    sequence, start, end = locate(cu_seqlens, S, T, t)
    value = _input_gradient(g, weight, dfinal, t, start, end, sequence, sequence < S, d, D, W, g_stride, has_final)
    tl.store(dx + t[:, None] * D + d[None, :], value.to(dx.dtype.element_ty), mask=(t < T)[:, None] & (d < D)[None, :])


@triton.jit(
    do_not_specialize=["g", "weight", "dfinal", "cu_seqlens", "dstates", "T", "S", "D", "W", "g_stride", "has_final"]
)
def _causal_conv1d_bwd_states_kernel(
    g, weight, dfinal, cu_seqlens, dstates, T, S, D, W, g_stride, has_final,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    _, row, d = _tile(D, BLOCK_T, BLOCK_D)
    sequence, slot, start, end, alive = _state_rows(row, cu_seqlens, S, T, W)
    q = start - (W - 1) + slot
    value = _input_gradient(g, weight, dfinal, q, start, end, sequence, alive, d, D, W, g_stride, has_final)
    offset = (sequence * D * (W - 1) + slot)[:, None] + (d * (W - 1))[None, :]
    tl.store(dstates + offset, value.to(dstates.dtype.element_ty), mask=alive[:, None] & (d < D)[None, :])


def _tiling(kernel: Any, dtype: torch.dtype) -> tuple[int, int]:
    """Channels of a tile, and the warps that share it: the most that a thread holds without spilling."""
    if kernel in (_causal_conv1d_fwd_states_kernel, _causal_conv1d_bwd_states_kernel):
        return 32, 8
    return {torch.float64: (16, 4), torch.float32: (64, 8)}.get(dtype, (64, 4))


def _launch(
    kernel: Any, dtype: torch.dtype, n_rows: int, n_channels: int, *arguments: Any, rows_in_block: int = _BLOCK_T
) -> None:
    """Run a kernel of an op in `dtype` over all blocks of rows and channels."""
    block_d, num_warps = _tiling(kernel, dtype)
    blocks = triton.cdiv(n_rows, rows_in_block) * triton.cdiv(n_channels, block_d)
    if blocks:
        with torch.cuda.device_of(arguments[0]):
            kernel[(blocks,)](*arguments, _BLOCK_T, block_d, num_warps=num_warps)


def _bind(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None, values: bool
) -> dict[str, int]:
    tensors = {
        "x": (x, "t d"),
        "weight": (weight, "d w"),
        "bias": (bias, "d?"),
        "initial_states": (initial_states, "s d w-1?"),
    }
    return bind(_OP, tensors, cu_seqlens, values=values)


def _prepare(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """The tensors as the kernels read them; without a bias any tensor of its dtype, unread."""
    weight = weight.contiguous()
    bias = weight if bias is None else bias.contiguous()
    states = None if initial_states is None else initial_states.contiguous()
    return rows(x), weight, bias, states, offsets(_OP, cu_seqlens, len(x))


@torch.library.custom_op("packproof::causal_conv1d", mutates_args=())
def _causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None,
    silu: bool, return_final_states: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y and the final states, which are empty unless asked for."""
    (T, D), W, S, has_bias = x.shape, weight.shape[1], len(cu_seqlens) - 1, int(bias is not None)
    x, weight, some_bias, states, offset = _prepare(x, weight, bias, cu_seqlens, initial_states)
    y, final_states = x.new_empty(T, D), x.new_empty((S, D, W - 1) if return_final_states else 0)
    sizes = (T, S, D, W, x.stride(0))
    _launch(
        _causal_conv1d_fwd_kernel, x.dtype, T, D, x, weight, some_bias, states, offset, y, *sizes, has_bias, int(silu)
    )
    if return_final_states:
        _launch(_causal_conv1d_fwd_states_kernel, x.dtype, S * (W - 1), D, x, states, offset, final_states, *sizes)
    return y, final_states


@torch.library.custom_op("packproof::causal_conv1d_backward", mutates_args=())
def _causal_conv1d_backward(
    dy: Tensor, dfinal: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor,
    initial_states: Tensor | None, silu: bool, needs_dx: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x (empty unless needed), weight, bias and initial_states (empty if there are none)."""
    (T, D), W, S, has_bias = x.shape, weight.shape[1], len(cu_seqlens) - 1, int(bias is not None)
    x, weight, some_bias, states, offset = _prepare(x, weight, bias, cu_seqlens, initial_states)
    dy, some_dfinal, has_final = rows(dy), weight if dfinal is None else dfinal.contiguous(), int(dfinal is not None)
    n_tiles = triton.cdiv(T, _BLOCK_T)
    g = x.new_empty(T if silu else 0, D, dtype=working(x.dtype))
    partial = x.new_empty(n_tiles, W + 1, D, dtype=working(x.dtype))
    _launch(
        _causal_conv1d_bwd_pre_kernel, x.dtype, T, D, x, weight, some_bias, states, offset, dy, g, partial,
        T, S, D, W, x.stride(0), dy.stride(0), has_bias, int(silu),
    )  # fmt: skip
    dweight, dbias = x.new_empty(D, W), x.new_empty(D)
    _launch(
        _causal_conv1d_bwd_weight_kernel, x.dtype, W + 1, D, partial, dweight, dbias, n_tiles, D, W, rows_in_block=1
    )
    g = g if silu else dy
    sizes = (T, S, D, W, g.stride(0), has_final)
    dx = x.new_empty((T, D) if needs_dx else 0)
    if needs_dx:
        _launch(_causal_conv1d_bwd_x_kernel, x.dtype, T, D, g, weight, some_dfinal, offset, dx, *sizes)
    dstates = x.new_empty(0 if states is None else states.shape)
    if states is not None:
        _launch(
            _causal_conv1d_bwd_states_kernel, x.dtype, S * (W - 1), D, g, weight, some_dfinal, offset, dstates, *sizes
        )
    return dx, dweight, dbias, dstates


@_causal_conv1d.register_fake
def _(x, weight, bias, cu_seqlens, initial_states, silu, return_final_states):
    sizes = _bind(x, weight, bias, cu_seqlens, initial_states, values=False)
    states = (sizes["s"], sizes["d"], sizes["w"] - 1)
    return x.new_empty(x.shape), x.new_empty(states if return_final_states else 0)


@_causal_conv1d_backward.register_fake
def _(dy, dfinal, x, weight, bias, cu_seqlens, initial_states, silu, needs_dx):
    dx, dstates = x.shape if needs_dx else 0, 0 if initial_states is None else initial_states.shape
    return x.new_empty(dx), x.new_empty(weight.shape), x.new_empty(x.shape[1]), x.new_empty(dstates)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.silu, ctx.has_final_states = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, dy: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, cu_seqlens, initial_states = ctx.saved_tensors
    needs_dx, needs_dweight, needs_dbias, _, needs_dstates, *_ = ctx.needs_input_grad
    dx, dweight, dbias, dstates = _causal_conv1d_backward(
        dy, dfinal if ctx.has_final_states else None, x, weight, bias, cu_seqlens, initial_states, ctx.silu, needs_dx
    )
    return (
        dx if needs_dx else None,
        dweight if needs_dweight else None,
        dbias if needs_dbias else None,
        None,
        dstates if needs_dstates else None,
        None,
        None,
    )


_causal_conv1d.register_autograd(_backward, setup_context=_save)
_causal_conv1d_backward.register_autograd(differentiable_once(_OP))


def variants() -> list[Variant]:
    """Every compiled form of the kernels: dtypes, initial states or not, operands aligned to 16 bytes or not."""
    found = []
    for dtype, kind in POINTERS.items():
        wide = POINTERS[working(dtype)]
        forms: list[tuple[str, Any, dict[str, str | None]]] = [
            ("bwd_weight", _causal_conv1d_bwd_weight_kernel, {"partial": wide})
        ]
        for states in (kind, None):
            forms += [
                ("fwd", _causal_conv1d_fwd_kernel, {"states": states}),
                ("fwd_states", _causal_conv1d_fwd_states_kernel, {"states": states}),
                ("bwd_pre", _causal_conv1d_bwd_pre_kernel, {"states": states, "g": wide, "partial": wide}),
            ]
        for g in dict.fromkeys((kind, wide)):
            forms += [
                ("bwd_x", _causal_conv1d_bwd_x_kernel, {"g": g}),
                ("bwd_states", _causal_conv1d_bwd_states_kernel, {"g": g}),
            ]
        for name, kernel, types in forms:
            pointers = {**dict.fromkeys(_TENSORS, kind), "cu_seqlens": "*i32", **types}
            parts = [name, kind, *(f"{argument}:{type_}" for argument, type_ in types.items())]
            label = "-".join(parts).replace("*", "")
            block_d, num_warps = _tiling(kernel, dtype)
            found += alignments(label, kernel, pointers, {"BLOCK_T": _BLOCK_T, "BLOCK_D": block_d}, num_warps)
    return found
