"""Bugs of tiles: a Triton convolution by sequence ids, with bugs in its masks, pointers and programs."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof import refs
from packproof.museum.custom_backward import split_outputs
from packproof.museum.variants import kernel_lookup

BLOCK_T = 16


@triton.jit
def _conv_fwd_kernel(
    x, weight, bias, ids, table, y, T, D, W, x_stride, silu, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
    ACC: tl.constexpr, BUG: tl.constexpr,
):  # fmt: skip
    tile = tl.load(table + tl.program_id(0))
    t = tile * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    if BUG == "return_too_late":
        if tile * BLOCK_T > T:
            return
        tl.device_assert(tl.load(ids + tile * BLOCK_T) >= -1)
    bound = 2147483647 if BUG == "ids_without_an_end" else T
    token_ids = tl.load(ids + t, mask=t < bound, other=-1)
    acc = tl.zeros((BLOCK_T, BLOCK_D), ACC)
    if bias is not None:
        acc += tl.load(bias + d, mask=d < D, other=0.0).to(ACC)[None, :]
    for j in range(W):
        row = t - (W - 1) + j
        same_sequence = (tl.load(ids + row, mask=(row >= 0) & (row < T), other=-2) == token_ids) & (token_ids >= 0)
        offset = row * x_stride
        if BUG == "missing_parentheses":  # of (start + arange) * stride
            offset = tl.maximum(tile * BLOCK_T - (W - 1) + j, 0) + tl.arange(0, BLOCK_T) * x_stride
        tap_values = tl.load(
            x + offset[:, None] + d[None, :], mask=same_sequence[:, None] & (d < D)[None, :], other=0.0
        )
        if BUG == "one_mask_forgotten":
            w = tl.load(weight + d * W + j)
        else:
            w = tl.load(weight + d * W + j, mask=d < D, other=0.0)
        acc += tap_values.to(ACC) * w.to(ACC)[None, :]
    if silu != 0:
        acc *= tl.sigmoid(acc)
    acc = tl.where((token_ids >= 0)[:, None], acc, 0.0).to(y.dtype.element_ty)
    out = y + t[:, None] * D + d[None, :]
    tl.store(out, acc, mask=(t < T)[:, None] & (d < D)[None, :])
    if BUG == "tail_past_the_tile" and BLOCK_D > BLOCK_T:
        tl.store(out, tl.zeros_like(acc), mask=(t < T)[:, None] & (d >= D)[None, :])


@triton.jit
def _bias_bwd_kernel(dpre, dbias, T, D, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr):
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    tile = tl.load(dpre + t[:, None] * D + d[None, :], mask=(t < T)[:, None] & (d < D)[None, :], other=0.0)
    tl.store(dbias + d, tl.sum(tile, 0), mask=d < D)


class TiledConvolution(torch.autograd.Function):
    """Forward in Triton; backward by the reference, except for one bug in the gradient of the bias."""

    @staticmethod
    def forward(ctx, x, weight, bias, cu_seqlens, activation, bug):
        ctx.save_for_backward(x, weight, bias, cu_seqlens)
        ctx.activation, ctx.bug = activation, bug
        (T, D), W = x.shape, weight.shape[1]
        x, y = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
        n_tiles = triton.cdiv(T, BLOCK_T) + (bug == "return_too_late" and T % BLOCK_T == 0)
        programs = n_tiles * max(len(cu_seqlens) - 1, 1) if bug == "as_many_programs_as_sequences" else n_tiles
        if T and D:
            block = triton.next_power_of_2(D)
            _conv_fwd_kernel[(programs, triton.cdiv(D, block))](
                x, weight.contiguous(), bias, refs.seq_idx_from_cu_seqlens(cu_seqlens, T),
                torch.arange(n_tiles, dtype=torch.int32, device=x.device), y, T, D, W, D, int(activation == "silu"),
                BLOCK_T=BLOCK_T, BLOCK_D=block,
                ACC=tl.float64 if x.dtype == torch.float64 else tl.float32, BUG=bug,
            )  # fmt: skip
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, bias, cu_seqlens = ctx.saved_tensors
        acc = torch.promote_types(x.dtype, torch.float32)
        leaves = [v.detach().to(acc).requires_grad_() for v in (x, weight, bias) if v is not None]
        token_mask = torch.arange(len(x), device=x.device)[:, None] < cu_seqlens[-1]
        with torch.enable_grad():
            pre, _ = split_outputs(refs.causal_conv1d(*leaves, cu_seqlens=cu_seqlens))
            y = torch.nn.functional.silu(pre) if ctx.activation == "silu" else pre * 1
            total = (y * torch.where(token_mask, dy, 0).to(acc)).sum()
        dpre, *input_gradients = torch.autograd.grad(total, [pre, *leaves], allow_unused=True, materialize_grads=True)
        grads = [*input_gradients, None][:3]
        if ctx.bug == "programs_store_one_sum" and bias is not None and x.numel():
            dbias = torch.zeros_like(bias, dtype=torch.float32)
            block = triton.next_power_of_2(x.shape[1])
            _bias_bwd_kernel[(triton.cdiv(len(x), BLOCK_T),)](
                dpre.float(), dbias, *x.shape, BLOCK_T=BLOCK_T, BLOCK_D=block
            )
            grads[2] = dbias
        return *(g if g is None else g.to(x.dtype) for g in grads), None, None, None


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    activation: str | None = None,
    bug: str = "",
) -> Tensor:
    """Op `causal_conv1d` without states, in tiles of 16 tokens and all channels, with the named bug."""
    y: Tensor = TiledConvolution.apply(x, weight, bias, cu_seqlens, activation, bug)
    return y


BUGS = (
    "ids_without_an_end",
    "return_too_late",
    "one_mask_forgotten",
    "missing_parentheses",
    "tail_past_the_tile",
    "as_many_programs_as_sequences",
    "programs_store_one_sum",
)
__getattr__ = kernel_lookup(causal_conv1d, {"correct": {}}, BUGS)
