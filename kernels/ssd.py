"""SSD over a pack, forward and backward, in Triton.

Chunks start where sequences start. So a chunk belongs to one sequence, and no bit of a sequence depends on the others.
Backward recomputes the states between chunks and carries their gradients back. The mathematics is in ssd_fwd and
ssd_bwd, the order of the kernels in ssd_launch and ssd_launch_bwd.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from collections.abc import Generator
from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor

from packproof.base.arguments import (
    bind,
    check_option,
    check_options,
    empty_gradients,
    empty_output,
    widen_narrow_inputs,
)
from packproof.base.errors import ArgumentError, checked_call
from packproof.base.signatures import SSD
from packproof.kernels import cuda
from packproof.kernels.launch import is_on_host, require_device, require_dtype
from packproof.kernels.operators import differentiable, differentiable_once, fake, operator
from packproof.kernels.ssd_cuda_launch import SHORT, HopperBackward, HopperForward, hopper_over_ranks, refusal
from packproof.kernels.ssd_fwd import _ssd_fwd_chunk_scan_kernel
from packproof.kernels.ssd_launch import CarriedStates, SsdProblem, ends_shape
from packproof.kernels.ssd_launch_bwd import Gradients, begin_backward, finish_backward, ssd_gradients
from packproof.kernels.ssd_tiles import (
    CHUNK,
    CHUNK_INTERPRETED,
    MAX_STATES,
    SEGMENT,
    SEGMENT_INTERPRETED,
    variants,
)

__all__ = ["INTERPRETED", "PROMISES", "ssd", "ssd_triton", "variants"]

PROMISES = {
    "grid": "sequence",
    "chunk": CHUNK,
    "segment": SEGMENT,
    "compute": "operand",
    "deterministic": True,
    "isolated": True,
    "capturable": True,
    "steady": True,
    "state_entry": "carry",
}
INTERPRETED = {"chunk": CHUNK_INTERPRETED, "segment": SEGMENT_INTERPRETED}

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@overload
def ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, *, dt_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: Literal[False] = False, impl: str = "auto",
) -> Tensor: ...  # fmt: skip
@overload
def ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, *, dt_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: Literal[True], impl: str = "auto",
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    dt_bias: Tensor | None = None, *, dt_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: bool, impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
@checked_call
def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    dt_softplus: bool = False,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """SSD of packed sequences (Mamba-2, Dao & Gu 2024): h = exp(dt A) h + dt x Bᵀ, y = (h C + D x) silu(z).

    x: (t, h, p), in fp32, bf16 or fp16, the dtype of all tokens.
    dt: (t, h).
    A: (h,) in fp32.
    B, C: (t, g, n). n is at most 256. Head i uses group i // (h / g).
    D: (h,) or (h, p) in fp32.
    z: (t, h, p).
    dt_bias: (h,) in fp32.
    dt_softplus: the step is softplus(dt + dt_bias); otherwise it is dt + dt_bias.
    cu_seqlens: int32 or int64 (s + 1,).
    initial_states: (s, h, p, n) in fp32.
    return_final_states: return the final states too.
    impl: "triton", or "cuda", faster on Hopper GPUs for bf16 tokens, p = 64, n = 64 or 128 and at least two heads a
    group, with packproof[cuda]; "auto" chooses "cuda" where it can run. With a gate z, backward is in Triton.

    A, D and dt_bias may also have 16 bits, beside tokens of the same dtype or of fp32. Their gradients are rounded to
    16 bits once.

    Returns y (t, h, p) in x's dtype, zero in slack. With return_final_states it also returns the states (s, h, p, n) in
    fp32; an empty sequence returns its initial state. Differentiable once. The bits of a sequence's values and
    gradients do not depend on the others. A sequence continued from its state at a multiple of 2048 tokens has the bits
    of one run.

    fp32 and fp16 compute to the accuracy of fp32. With bf16 tokens y is rounded once, when it is stored; backward also
    rounds the states between chunks to bf16. Nothing waits for a GPU, so the values of cu_seqlens are not checked
    there. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.kernels import ssd
    >>> x, dt, A, B = torch.ones(5, 1, 2), torch.ones(5, 1), -torch.ones(1), torch.ones(5, 1, 3)
    >>> ssd(x, dt, A, B, B, cu_seqlens=torch.tensor([0, 2, 5]))[:, 0, 0]  # on a CPU with TRITON_INTERPRET=1
    tensor([3.0000, 4.1036, 3.0000, 4.1036, 4.5096])
    """
    check_options(SSD, dt_softplus=dt_softplus, return_final_states=return_final_states)
    check_option(SSD.op, "impl", impl, cuda.IMPLEMENTATIONS)
    if not torch.compiler.is_compiling():
        _bind(x, dt, A, B, C, D, z, dt_bias, cu_seqlens, initial_states, values=is_on_host(x))
        require_device(SSD.op, x, _ssd_fwd_chunk_scan_kernel)
        _uses_cuda(impl, x, B)  # an impl that cannot run is an error before anything is launched
    inputs = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    tensors = (*widen_narrow_inputs(SSD, inputs).values(), cu_seqlens, initial_states)
    y, final_states, _ = _ssd(*tensors, dt_softplus, return_final_states, impl)
    return (y, final_states) if return_final_states else y


ssd_triton = partial(ssd, impl="triton")


def _uses_cuda(impl: str, x: Tensor, B: Tensor) -> bool:
    """Whether to run the kernels in CUDA C++. Raises ArgumentError if `impl` asks for them and they cannot run."""
    return cuda.uses_cuda(SSD.op, impl, refusal(x, B))


def _bind(x, dt, A, B, C, D, z, dt_bias, cu_seqlens, initial_states, *, values: bool) -> dict[str, int]:
    tensors = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    sizes = bind(SSD, cu_seqlens, **tensors, initial_states=initial_states, values=values)
    require_dtype(SSD.op, "x", x, DTYPES)
    if sizes["n"] > MAX_STATES:
        raise ArgumentError(
            f"{SSD.op}: B has {sizes['n']} states (axis n) but at most {MAX_STATES} were expected\n"
            f"    packproof.refs.{SSD.op} has no limit."
        )
    return sizes


@operator
def _ssd(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    dt_bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None, softplus: bool,
    return_final_states: bool, impl: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y; the final states, empty unless requested; the states between segments, an input of backward."""
    if _uses_cuda(impl, x, B):
        y, final_states, ends = HopperForward(
            x, dt, A, B, C, D, z, dt_bias, cu_seqlens, initial_states, softplus, return_final_states,
            scans_all=initial_states is not None,
        ).run()  # fmt: skip
        return y, final_states if return_final_states else A.new_empty(0), ends
    problem = SsdProblem(
        x, dt, A, B, C, D, dt_bias, cu_seqlens, initial_states, softplus, every_sequence=return_final_states
    )
    y, final_states, ends = problem.forward(z, keep_final=return_final_states)
    return y.to(x.dtype).contiguous(), final_states if return_final_states else A.new_empty(0), ends


@operator
def _ssd_backward(
    dy: Tensor, dfinal: Tensor | None, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None,
    z: Tensor | None, dt_bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None, ends: Tensor,
    softplus: bool, impl: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of the inputs in order, empty for an absent input."""
    has_states, is_hopper = initial_states is not None, z is None and _uses_cuda(impl, x, B)
    problem = SsdProblem(
        x, dt, A, B, C, D, dt_bias, cu_seqlens, initial_states, softplus, every_sequence=has_states,
        skipped=SHORT if is_hopper and not has_states and dfinal is None else 0,
    )  # fmt: skip
    hopper = _hopper_backward(impl, problem, dy, x, dt, A, B, C, D, z, dt_bias, cu_seqlens, softplus)
    gradients = ssd_gradients(problem, dy, dfinal, z, ends, hopper)
    dinitial = A.new_empty(0) if initial_states is None else gradients.initial_states
    return *_gradients_by_argument(gradients, x, A, D, z, dt_bias), dinitial


def _hopper_backward(
    impl: str, problem: SsdProblem, dy: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor,
    D: Tensor | None, z: Tensor | None, dt_bias: Tensor | None, cu_seqlens: Tensor, softplus: bool,
) -> HopperBackward | None:  # fmt: skip
    """The kernels in CUDA C++ of a backward pass, where they run: not after a gate."""
    if z is not None or not problem.T or not problem.S or not _uses_cuda(impl, x, B):
        return None
    return HopperBackward(problem, dy, x, dt, A, B, C, D, z, dt_bias, cu_seqlens, softplus)


def _gradients_by_argument(
    gradients: Gradients, x: Tensor, A: Tensor, D: Tensor | None, z: Tensor | None, dt_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients in the order of the arguments, without initial states."""
    return (  # no tensor twice: outputs of an operator may not alias
        gradients.x.to(x.dtype).contiguous(),
        gradients.dt.to(x.dtype),
        gradients.A.sum(1),
        gradients.B.to(x.dtype).contiguous(),
        gradients.C.to(x.dtype).contiguous(),
        A.new_empty(0) if D is None else gradients.D.sum(1) if D.ndim == 1 else gradients.D.contiguous(),
        x.new_empty(0) if z is None else gradients.z.to(x.dtype).contiguous(),
        A.new_empty(0) if dt_bias is None else gradients.bias.sum(1),
    )


@fake(_ssd)
def _(x, dt, A, B, C, D, z, dt_bias, cu_seqlens, initial_states, softplus, return_final_states, impl):
    sizes = _bind(x, dt, A, B, C, D, z, dt_bias, cu_seqlens, initial_states, values=False)
    final_states = empty_output(SSD, "final_states", x, sizes) if return_final_states else A.new_empty(0)
    return empty_output(SSD, "y", x, sizes), final_states, A.new_empty(ends_shape(x, B))


@fake(_ssd_backward)
def _(dy, dfinal, x, dt, A, B, C, D, z, dt_bias, cu_seqlens, initial_states, ends, softplus, impl):
    return empty_gradients(SSD, x, dt, A, B, C, D, z, dt_bias, initial_states)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.softplus, ctx.has_final_states, ctx.impl = inputs
    ctx.set_materialize_grads(False)  # zeros for the states between segments would be as large as they are
    ctx.save_for_backward(*tensors, output[2])


def _backward(ctx: Any, dy: Tensor | None, dfinal: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    dy = torch.zeros_like(ctx.saved_tensors[0]) if dy is None else dy
    dfinal = dfinal if ctx.has_final_states else None
    gradients = list(_ssd_backward(dy, dfinal, *ctx.saved_tensors, ctx.softplus, ctx.impl))
    gradients.insert(8, None)  # cu_seqlens
    needed_gradients = (g if needed else None for g, needed in zip(gradients, ctx.needs_input_grad, strict=False))
    return *needed_gradients, *[None] * 3


differentiable(_ssd, _backward, _save)
differentiable_once(_ssd_backward, SSD.op)


def forward_over_ranks(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    dt_bias: Tensor | None, cu_seqlens: Tensor, *, softplus: bool, leaves: bool,
) -> Generator[tuple[Tensor, Tensor] | None, Tensor | None, tuple[Tensor, Tensor]]:  # fmt: skip
    """One sequence of a pack cut over ranks, as a generator.

    Yields the state (1, h, p, n) at the end of the rank's tokens, starting from zero, and the product of its decays
    (h,); None if the sequence ends on this rank. Is sent the state before the rank's tokens, or None. Returns y and the
    states for backward.
    """
    if _uses_cuda("auto", x, B):
        call = HopperForward(x, dt, A, B, C, D, z, dt_bias, cu_seqlens, None, softplus, leaves, scans_all=True)
        return (yield from hopper_over_ranks(call, leaves=leaves))
    problem = SsdProblem(x, dt, A, B, C, D, dt_bias, cu_seqlens, None, softplus, every_sequence=True)
    # before the exchange: no rank waits for it
    segment_states = problem.find_segment_states(problem.x, problem.B, reverse=False)
    leaving_state = (
        (_state_at_end(problem, problem.x, problem.B, segment_states, reverse=False), problem.decay())
        if leaves
        else None
    )
    problem.initial = problem.pad_states((yield leaving_state))
    y, _, ends = problem.forward(z, keep_final=False, segment_states=segment_states)
    return y.to(x.dtype).contiguous(), ends


def backward_over_ranks(
    dy: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    dt_bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None, ends: Tensor, *, softplus: bool,
) -> Generator[Tensor | None, Tensor | None, tuple[Tensor, ...]]:  # fmt: skip
    """The backward pass of `forward_over_ranks`, as a generator.

    Yields the gradient of the initial state from the rank's own outputs, None without an initial state. Is sent the
    gradient of the state at the end, or None. Returns the gradients of the inputs, empty for an absent one.
    """
    problem = SsdProblem(x, dt, A, B, C, D, dt_bias, cu_seqlens, initial_states, softplus, every_sequence=True)
    hopper = _hopper_backward("auto", problem, dy, x, dt, A, B, C, D, z, dt_bias, cu_seqlens, softplus)
    backward_start = begin_backward(problem, dy, z, ends, hopper)
    dy_before_gate = backward_start.incoming.full
    if hopper is None:
        segment_gradients = problem.find_segment_states(dy_before_gate, problem.C, reverse=True)
    else:
        segment_gradients = hopper.segment_gradients(keep_initial=True)
    enters = initial_states is not None
    dfinal = (
        yield _state_at_end(problem, dy_before_gate, problem.C, segment_gradients, reverse=True) if enters else None
    )
    return _gradients_by_argument(
        finish_backward(problem, backward_start, dfinal, segment_gradients), x, A, D, z, dt_bias
    )


def forward_on_one_rank(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    dt_bias: Tensor | None, cu_seqlens: Tensor, *, softplus: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sequences of a rank that no other rank shares. The first one may begin after the first row.

    Returns y, arbitrary before the first sequence, and the states for backward.
    """
    y, _, ends = _ssd(x, dt, A, B, C, D, z, dt_bias, cu_seqlens, None, softplus, False, "auto")
    return y, ends


def backward_on_one_rank(
    dy: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    dt_bias: Tensor | None, cu_seqlens: Tensor, ends: Tensor, *, softplus: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of the inputs of `forward_on_one_rank`, empty for an absent one."""
    gradients: tuple[Tensor, ...] = _ssd_backward(
        dy, None, x, dt, A, B, C, D, z, dt_bias, cu_seqlens, None, ends, softplus, "auto"
    )
    return gradients[:-1]


def _state_at_end(
    problem: SsdProblem, values: Tensor, keys: Tensor, segment_states: CarriedStates, *, reverse: bool
) -> Tensor:
    """The state after the last segment, or its gradient before the first.

    segment_states: from `SsdProblem.find_segment_states`.
    """
    carried = problem.carry(
        values, keys, None, keep_final=True, store=False, reverse=reverse, keep_ends=False,
        segment_states=segment_states._replace(finals=segment_states.finals.clone()),
    )  # fmt: skip
    return problem.trim_states(carried.finals)
