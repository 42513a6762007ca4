"""Softmax attention over a pack, forward and backward, in Triton.

Blocks of queries and of keys start where sequences start. So a block belongs to one sequence, and no bit of a sequence
depends on the others. The mathematics is in attention_fwd and attention_bwd, the tiles in attention_tiles, the launches
in attention_launch.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from packproof.base.arguments import bind, check_options, empty_gradients, empty_output, finite_scale
from packproof.base.errors import ArgumentError, checked_call, typed_as
from packproof.base.signatures import ATTENTION
from packproof.kernels.attention_fwd import _attention_fwd_kernel
from packproof.kernels.attention_launch import AttentionProblem
from packproof.kernels.attention_tiles import BLOCK, BLOCK_INTERPRETED, MAX_CHANNELS, variants
from packproof.kernels.launch import is_on_host, require_device, require_dtype
from packproof.kernels.operators import differentiable, differentiable_once, fake, operator
from packproof.refs.attention_options import check_softcap, reaches

if TYPE_CHECKING:
    from packproof.refs import overloads

__all__ = ["INTERPRETED", "PROMISES", "attention", "variants"]

PROMISES: dict[str, Any] = {
    "grid": "sequence",
    "chunk": BLOCK,
    "compute": "operand",
    "deterministic": True,
    "isolated": True,
    "capturable": True,
    "steady": True,
}
INTERPRETED: dict[str, Any] = {"chunk": BLOCK_INTERPRETED}

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@typed_as(lambda: overloads.attention)
@checked_call
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax attention of packed sequences (Vaswani et al. 2017, eq. 1; Dao 2023): softmax(q kᵀ scale) v.

    q: (t, hq, k), in fp32, bf16 or fp16, the dtype of all tensors. k is at most 256.
    k: (u, hk, k). Query head i reads kv head i // (hq / hk).
    v: (u, hk, v). v is at most 256.
    sinks: (hq,), a score for each query head. It takes its share of the softmax and has no value (gpt-oss).
    cu_seqlens: int32 or int64 (s + 1,), the offsets of the queries.
    cu_seqlens_k: the offsets of the keys; by default cu_seqlens, with u = t.
    causal: set the right window to 0.
    window_size: (left, right). A query sees the keys from `left` before its position to `right` after it, -1 for no
    limit. The last query of a sequence stands at its last key, as in FlashAttention since 2.1.
    softmax_scale: factor of the scores, by default k ** -0.5.
    softcap: scores are softcap tanh(score / softcap); 0 for none.
    return_lse: return the logarithm of the denominator too.

    Returns (t, hq, v) in q's dtype. With return_lse it also returns (t, hq) in fp32: the natural logarithm of the
    softmax's denominator, sink included. Both are zero in slack. A query without visible keys has the value 0, and -inf
    or its sink for the logarithm. Differentiable once, through both. The bits of a sequence's values and gradients
    depend neither on the others nor on slack, NaN and Inf included. Gradients are summed in a fixed order.

    fp32 computes to the accuracy of fp32. With bf16 and fp16 the weights of the softmax are rounded before they meet
    the values, as in FlashAttention. So are the gradients of the scores in backward, where fp16 keeps 16 bits. Nothing
    waits for a GPU, so the values of the offsets are not checked there. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.kernels import attention
    >>> q, v = torch.zeros(5, 1, 2), torch.arange(1.0, 6)[:, None, None]  # equal scores: the mean of what is visible
    >>> attention(q, q, v, cu_seqlens=torch.tensor([0, 2, 5]), causal=True).flatten()  # with TRITON_INTERPRET=1
    tensor([1.0000, 1.5000, 3.0000, 3.5000, 4.0000])
    """
    check_options(ATTENTION, causal=causal, return_lse=return_lse)
    window_left, window_right = (
        -1 if reach == math.inf else int(reach) for reach in reaches(window_size, causal=causal)
    )
    channels = q.shape[-1] if isinstance(q, Tensor) and q.ndim else 1
    scale = finite_scale(ATTENTION.op, softmax_scale, channels, "softmax_scale")
    check_softcap(softcap)
    if not torch.compiler.is_compiling():
        _bind(q, k, v, sinks, cu_seqlens, cu_seqlens_k, values=is_on_host(q))
        require_device(ATTENTION.op, q, _attention_fwd_kernel)
    y, lse = _attention(q, k, v, sinks, cu_seqlens, cu_seqlens_k, window_left, window_right, scale, softcap, return_lse)
    return (y, lse.mT.contiguous()) if return_lse else y


def _bind(q, k, v, sinks, cu_seqlens, cu_seqlens_k, *, values: bool) -> dict[str, int]:
    sizes = bind(ATTENTION, cu_seqlens, q=q, k=k, v=v, sinks=sinks, values=values, cu_seqlens_k=cu_seqlens_k)
    require_dtype(ATTENTION.op, "q", q, _DTYPES)
    for name, axis in (("q", "k"), ("v", "v")):
        if sizes[axis] > MAX_CHANNELS:
            raise ArgumentError(
                f"{ATTENTION.op}: {name} has {sizes[axis]} channels per head (axis {axis}) but at most {MAX_CHANNELS} "
                f"were expected\n    packproof.refs.{ATTENTION.op} has no limit."
            )
    return sizes


@operator
def _attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, cu_seqlens: Tensor, cu_seqlens_k: Tensor | None,
    window_left: int, window_right: int, scale: float, softcap: float, return_lse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y, and lse (hq, t), the input of backward; zero in its slack if it is to be returned."""
    shape = q.shape[1], q.shape[0]
    lse = q.new_zeros(shape, dtype=torch.float32) if return_lse else q.new_empty(shape, dtype=torch.float32)
    keys = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    return AttentionProblem(q, k, v, sinks, cu_seqlens, keys, window_left, window_right, scale, softcap).forward(
        lse
    ), lse


@operator
def _attention_backward(
    dy: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None, y: Tensor, lse: Tensor, window_left: int, window_right: int, scale: float,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of the inputs in order. Without sinks their gradient is empty."""
    keys = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    problem = AttentionProblem(q, k, v, sinks, cu_seqlens, keys, window_left, window_right, scale, softcap)
    dy = problem.align(dy)
    delta, dsinks = problem.delta(y, dy, lse, dlse)
    dq, dk, dv = problem.backward(dy, lse, delta)
    return dq, dk, dv, q.new_empty(0) if sinks is None else dsinks.sum(1).to(sinks.dtype)


@fake(_attention)
def _(q, k, v, sinks, cu_seqlens, cu_seqlens_k, window_left, window_right, scale, softcap, return_lse):
    sizes = _bind(q, k, v, sinks, cu_seqlens, cu_seqlens_k, values=False)
    return empty_output(ATTENTION, "y", q, sizes), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


@fake(_attention_backward)
def _(dy, dlse, q, k, v, sinks, cu_seqlens, cu_seqlens_k, y, lse, window_left, window_right, scale, softcap):
    return empty_gradients(ATTENTION, q, k, v, sinks)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, sinks, cu_seqlens, cu_seqlens_k, *ctx.numbers, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, sinks, cu_seqlens, cu_seqlens_k, *output)


def _backward(ctx: Any, dy: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    saved_tensors = ctx.saved_tensors  # read once: recomputation hands them out once
    if dy is None:  # lse alone is differentiated
        *_, y, _ = saved_tensors
        dy = torch.zeros_like(y)
    gradients = _attention_backward(dy, dlse, *saved_tensors, *ctx.numbers)
    return *(g if needed else None for g, needed in zip(gradients, ctx.needs_input_grad, strict=False)), *[None] * 7


differentiable(_attention, _backward, _save)
differentiable_once(_attention_backward, ATTENTION.op)
