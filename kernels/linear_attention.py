"""Linear attention and its two decaying forms over a pack, forward and backward: instances of SSD's kernels.

By state-space duality (Dao & Gu 2024, section 5) they are SSD with x = v, B = k, C = scale q and a step of 1. The
log-decay of a token is 0, its gate, or a constant of the head. A state is (h, k, p) here and (h, p, k) in SSD, and is
read and returned as a transposed view, without a copy.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from packproof.base.arguments import bind, check_options, empty_output, finite_scale
from packproof.base.errors import ArgumentError, checked_call, typed_as
from packproof.base.signatures import LINEAR_ATTENTION, RETENTION, SIMPLE_GLA, Signature
from packproof.kernels.launch import is_on_host, require_device, require_dtype
from packproof.kernels.operators import differentiable, differentiable_once, fake, operator
from packproof.kernels.ssd import DTYPES, INTERPRETED, PROMISES, variants
from packproof.kernels.ssd_fwd import _ssd_fwd_chunk_scan_kernel
from packproof.kernels.ssd_launch import SsdProblem, ends_shape
from packproof.kernels.ssd_launch_bwd import ssd_gradients
from packproof.kernels.ssd_tiles import MAX_STATES

if TYPE_CHECKING:
    from packproof.refs import overloads

__all__ = ["INTERPRETED", "PROMISES", "linear_attention", "retention", "simple_gla", "variants"]

Result = Tensor | tuple[Tensor, Tensor]


@typed_as(lambda: overloads.linear_attention)
@checked_call
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    scale: float | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result:
    """Linear attention of packed sequences (Katharopoulos et al. 2020, eq. 16 to 20): S = S + k vᵀ, y = scale Sᵀ q.

    q: (t, hk, k), in fp32, bf16 or fp16, the dtype of all tokens. k is at most 256.
    k: (t, hk, k).
    v: (t, hv, p). Value head j reads key head j // (hv / hk).
    cu_seqlens: int32 or int64 (s + 1,).
    scale: by default k ** -0.5.
    initial_states: (s, hv, k, p) in fp32.
    return_final_states: return the final states too.

    Returns y (t, hv, p) in v's dtype, zero in slack. With return_final_states it also returns the states (s, hv, k, p)
    in fp32, p rows of k in memory; initial states of this layout are read without a copy. An empty sequence returns its
    initial state. Differentiable once. The bits of a sequence's values and gradients do not depend on the others. A
    sequence continued from its state at a multiple of 2048 tokens has the bits of one run.

    fp32 and fp16 compute to the accuracy of fp32. With bf16 tokens y is rounded once, when it is stored; backward also
    rounds the states between chunks to bf16. Nothing waits for a GPU, so the values of cu_seqlens are not checked
    there. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.kernels import linear_attention
    >>> q, v = torch.ones(5, 1, 4), torch.ones(5, 1, 2)  # on a CPU with TRITON_INTERPRET=1
    >>> linear_attention(q, q, v, cu_seqlens=torch.tensor([0, 2, 5]))[:, 0, 0]
    tensor([2., 4., 2., 4., 6.])
    """
    return _call(LINEAR_ATTENTION, q, k, v, None, cu_seqlens, scale, initial_states, return_final_states)


@typed_as(lambda: overloads.simple_gla)
@checked_call
def simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    *,
    cu_seqlens: Tensor,
    scale: float | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result:
    """Linear attention with a gate per token and head (Yang et al. 2024): S = exp(g) S + k vᵀ, y = scale Sᵀ q.

    g: (t, hv), natural logarithms, from -inf to 0; in the dtype of the tokens, or fp32 beside bf16 or fp16. Its
    gradient has its dtype. All else is as in `linear_attention`.

    >>> import torch
    >>> from packproof.kernels import simple_gla
    >>> q, v, g = torch.ones(5, 1, 4), torch.ones(5, 1, 2), -torch.ones(5, 1)  # on a CPU with TRITON_INTERPRET=1
    >>> simple_gla(q, q, v, g, cu_seqlens=torch.tensor([0, 2, 5]))[:, 0, 0]
    tensor([2.0000, 2.7358, 2.0000, 2.7358, 3.0064])
    """
    return _call(SIMPLE_GLA, q, k, v, g, cu_seqlens, scale, initial_states, return_final_states)


@typed_as(lambda: overloads.retention)
@checked_call
def retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    *,
    cu_seqlens: Tensor,
    scale: float | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result:
    """Linear attention with a decay per head (Sun et al. 2023, RetNet, eq. 3): S = exp(decay) S + k vᵀ, y = scale Sᵀ q.

    decay: (hv,) in fp32, the natural logarithm of RetNet's γ, from -inf to 0. All else is as in `linear_attention`.

    >>> import torch
    >>> from packproof.kernels import retention
    >>> q, v = torch.ones(5, 1, 4), torch.ones(5, 1, 2)  # on a CPU with TRITON_INTERPRET=1
    >>> retention(q, q, v, -torch.ones(1), cu_seqlens=torch.tensor([0, 2, 5]))[:, 0, 0]
    tensor([2.0000, 2.7358, 2.0000, 2.7358, 3.0064])
    """
    return _call(RETENTION, q, k, v, decay, cu_seqlens, scale, initial_states, return_final_states)


def _call(
    signature: Signature, q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, cu_seqlens: Tensor, scale: Any,
    initial_states: Tensor | None, return_final_states: bool,
) -> Result:  # fmt: skip
    check_options(signature, return_final_states=return_final_states)
    if not torch.compiler.is_compiling():
        sizes = _bind(signature, q, k, v, decay, cu_seqlens, initial_states, values=is_on_host(q))
        finite_scale(signature.op, scale, sizes["k"])
        require_device(signature.op, q, _ssd_fwd_chunk_scan_kernel)
    operate = _OPERATORS[signature.op]
    y, final_states, _ = operate(q, k, v, decay, cu_seqlens, initial_states, scale, return_final_states)
    return (y, final_states) if return_final_states else y


def _bind(
    signature: Signature, q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, cu_seqlens: Tensor,
    initial_states: Tensor | None, *, values: bool,
) -> dict[str, int]:  # fmt: skip
    inputs = [q, k, v, initial_states] if signature is LINEAR_ATTENTION else [q, k, v, decay, initial_states]
    sizes = bind(signature, cu_seqlens, **dict(zip(signature.inputs, inputs, strict=True)), values=values)
    require_dtype(signature.op, "q", q, DTYPES)
    if sizes["k"] > MAX_STATES:
        raise ArgumentError(
            f"{signature.op}: k has {sizes['k']} channels per head (axis k) but at most {MAX_STATES} were expected\n"
            f"    packproof.refs.{signature.op} has no limit."
        )
    return sizes


def _problem(
    op: str, q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None,
    scale: float | None, every_sequence: bool,
) -> SsdProblem:  # fmt: skip
    """SSD with steps of 1. Its log-decays are dt A: g · 1, 1 · decay, or 1 · 0."""
    T, H, _ = v.shape
    ones = v.new_ones(H, dtype=torch.float32)
    unit_dt = ones.expand(T, H)  # in the memory of one token
    dt, A = (
        (unit_dt, torch.zeros_like(ones)) if decay is None else (decay, ones) if decay.ndim == 2 else (unit_dt, decay)
    )
    states = None if initial_states is None else initial_states.mT
    factor = finite_scale(op, scale, k.shape[2])
    return SsdProblem(
        v,
        dt,
        A,
        k,
        q,
        None,
        None,
        cu_seqlens,
        states,
        False,
        every_sequence=every_sequence,
        op=op,
        scale=factor,
        unit_steps=True,
    )


def _decay_gradient(decay: Tensor | None, token_gradients: Tensor, empty: Tensor) -> Tensor:
    """The gradient of g or decay, from the gradient of each token's log-decay (h, t)."""
    if decay is None:
        return empty
    return token_gradients.t().to(decay.dtype).contiguous() if decay.ndim == 2 else token_gradients.sum(1)


def _register_operator(signature: Signature) -> Any:
    """Register the operator of an op with torch, with its fake and its gradient.

    decay: g (t, hv), decay (hv,), or None.
    """
    op = signature.op

    def forward(
        q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None,
        scale: float | None, return_final_states: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """y; the final states, empty unless requested; the states between segments, an input of backward."""
        problem = _problem(op, q, k, v, decay, cu_seqlens, initial_states, scale, every_sequence=return_final_states)
        y, final_states, ends = problem.forward(None, keep_final=return_final_states)
        return y.to(v.dtype).contiguous(), final_states.mT if return_final_states else ends.new_empty(0), ends

    def backward(
        dy: Tensor, dfinal: Tensor | None, q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, cu_seqlens: Tensor,
        initial_states: Tensor | None, ends: Tensor, scale: float | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """The gradients of the inputs in order, empty for an absent input."""
        problem = _problem(
            op, q, k, v, decay, cu_seqlens, initial_states, scale, every_sequence=initial_states is not None
        )
        gradients = ssd_gradients(problem, dy, None if dfinal is None else dfinal.mT, None, ends)
        dq, dk, dv = (gradient.to(v.dtype).contiguous() for gradient in (gradients.C, gradients.B, gradients.x))
        dstates = ends.new_empty(0) if initial_states is None else gradients.initial_states.mT
        return dq, dk, dv, _decay_gradient(decay, gradients.A, ends.new_empty(0)), dstates

    forward.__name__, backward.__name__ = op, f"{op}_backward"
    forward_op, backward_op = operator(forward), operator(backward)

    @fake(forward_op)
    def _(q, k, v, decay, cu_seqlens, initial_states, scale, return_final_states):
        sizes = _bind(signature, q, k, v, decay, cu_seqlens, initial_states, values=False)
        ends = v.new_empty(ends_shape(v, k), dtype=torch.float32)
        states = ends.new_empty([sizes[axis] for axis in ("s", "hv", "p", "k")]).mT
        return empty_output(signature, "y", q, sizes), states if return_final_states else ends.new_empty(0), ends

    @fake(backward_op)
    def _(dy, dfinal, q, k, v, decay, cu_seqlens, initial_states, ends, scale):
        dq, dk, dv, ddecay = (ends.new_empty(0) if x is None else x.new_empty(x.shape) for x in (q, k, v, decay))
        dstates = ends.new_empty(0) if initial_states is None else ends.new_empty(initial_states.mT.shape).mT
        return dq, dk, dv, ddecay, dstates

    def compute_gradients(ctx: Any, dy: Tensor | None, dfinal: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        v = ctx.saved_tensors[2]
        dy = torch.zeros_like(v) if dy is None else dy
        gradients = list(backward_op(dy, dfinal if ctx.has_final_states else None, *ctx.saved_tensors, ctx.scale))
        gradients.insert(4, None)  # cu_seqlens
        return *(g if needed else None for g, needed in zip(gradients, ctx.needs_input_grad, strict=False)), None, None

    differentiable(forward_op, compute_gradients, _save)
    differentiable_once(backward_op, op)
    return forward_op


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale, ctx.has_final_states = inputs
    ctx.set_materialize_grads(False)  # zeros for the states between segments would be as large as they are
    ctx.save_for_backward(*tensors, output[2])


_OPERATORS = {signature.op: _register_operator(signature) for signature in (LINEAR_ATTENTION, SIMPLE_GLA, RETENTION)}
