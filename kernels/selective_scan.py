"""Selective scan over a pack, forward and backward: in Triton, and for NVIDIA GPUs in CUDA C++ too.

Pieces start where sequences start, and the result of a piece follows from its own sequence. So no bit of a sequence
depends on the others. The mathematics is in selective_scan_fwd, selective_scan_bwd and selective_scan.cu;
selective_scan_launch has the order of the kernels.
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
from packproof.base.errors import checked_call
from packproof.base.signatures import SELECTIVE_SCAN
from packproof.kernels import cuda
from packproof.kernels.launch import is_on_host, require_device, require_dtype
from packproof.kernels.operators import differentiable, differentiable_once, fake, operator
from packproof.kernels.selective_scan_fwd import _selective_scan_fwd_kernel
from packproof.kernels.selective_scan_launch import (
    DTYPES,
    PieceStates,
    ScanProblem,
    dense_rows,
    kept_shape,
    refusal,
    variants,
)

PROMISES = {
    "grid": "sequence",
    "chunk": 32,
    "segment": 1024,
    "compute": "fp32",
    "deterministic": True,
    "isolated": True,
    "capturable": True,
    "steady": True,
    "state_entry": "carry",
}
INTERPRETED = {"chunk": 4, "segment": 8}

__all__ = ["INTERPRETED", "PROMISES", "selective_scan", "selective_scan_triton", "variants"]


@overload
def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, *, delta_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: Literal[False] = False, impl: str = "auto",
) -> Tensor: ...  # fmt: skip
@overload
def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, *, delta_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: Literal[True], impl: str = "auto",
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, *, delta_softplus: bool = False, cu_seqlens: Tensor,
    initial_states: Tensor | None = None, return_final_states: bool, impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]: ...  # fmt: skip
@checked_call
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    *,
    delta_softplus: bool = False,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Selective scan of packed sequences (Mamba, Gu & Dao 2023): h = exp(Δ A) h + Δ B u, y = (C h + D u) silu(z).

    u: (t, d), in fp32, bf16 or fp16, the dtype of all tokens. The last two compute in fp32.
    delta: (t, d).
    A: (d, n) in fp32.
    B, C: (t, n) or (t, g, n). Channel i uses group i // (d / g).
    D: (d,) in fp32.
    z: (t, d).
    delta_bias: (d,) in fp32.
    delta_softplus: Δ = softplus(delta + delta_bias); otherwise Δ = delta + delta_bias.
    cu_seqlens: int32 or int64 (s + 1,).
    initial_states: (s, d, n) in fp32.
    return_final_states: return the final states too.
    impl: "triton", or "cuda", faster, for NVIDIA GPUs and n up to 16, with packproof[cuda]; "auto" chooses "cuda" where
    it can run.

    A, D and delta_bias may also have 16 bits, beside tokens of the same dtype or of fp32. Their gradients are rounded
    to 16 bits once.

    Returns y (t, d) in u's dtype, zero in slack. With return_final_states it also returns the states (s, d, n) in fp32;
    an empty sequence returns its initial state. Differentiable once. The bits of a sequence's values and gradients do
    not depend on the others. A sequence continued from its state at a multiple of 1024 tokens has the bits of one run.
    Nothing waits for a GPU, so the values of cu_seqlens are not checked there. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.kernels import selective_scan
    >>> u, A, B = torch.ones(5, 2), -torch.ones(2, 3), torch.ones(5, 3)  # on a CPU with TRITON_INTERPRET=1
    >>> y, states = selective_scan(u, u, A, B, B, cu_seqlens=torch.tensor([0, 2, 5]), return_final_states=True)
    >>> y[:, 0], states.shape
    (tensor([3.0000, 4.1036, 3.0000, 4.1036, 4.5096]), torch.Size([2, 2, 3]))
    """
    check_options(SELECTIVE_SCAN, delta_softplus=delta_softplus, return_final_states=return_final_states)
    check_option(SELECTIVE_SCAN.op, "impl", impl, cuda.IMPLEMENTATIONS)
    if not torch.compiler.is_compiling():
        _bind(u, delta, A, B, C, D, z, delta_bias, cu_seqlens, initial_states, values=is_on_host(u))
        require_device(SELECTIVE_SCAN.op, u, _selective_scan_fwd_kernel)
        _uses_cuda(impl, u, A)  # an impl that cannot run is an error before anything is launched
    inputs = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias}
    tensors = (*widen_narrow_inputs(SELECTIVE_SCAN, inputs).values(), cu_seqlens, initial_states)
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    y, final_states, _ = _selective_scan(*tensors, delta_softplus, return_final_states, keep, impl)
    return (y, final_states) if return_final_states else y


selective_scan_triton = partial(selective_scan, impl="triton")


def _uses_cuda(impl: str, u: Tensor, A: Tensor) -> bool:
    """Whether to run the kernels in CUDA C++. Raises ArgumentError if `impl` asks for them and they cannot run."""
    return cuda.uses_cuda(SELECTIVE_SCAN.op, impl, refusal(u.device, A.shape[1]))


def _bind(u, delta, A, B, C, D, z, delta_bias, cu_seqlens, initial_states, *, values: bool) -> dict[str, int]:
    tensors = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias}
    sizes = bind(SELECTIVE_SCAN, cu_seqlens, **tensors, initial_states=initial_states, values=values)
    require_dtype(SELECTIVE_SCAN.op, "u", u, DTYPES)
    return sizes


@operator
def _selective_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None, softplus: bool,
    return_final_states: bool, keep_states: bool, impl: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y; the final states; the states kept for backward. The last two are empty unless requested."""
    problem = ScanProblem(
        u, delta, A, B, C, D, z, delta_bias, cu_seqlens, initial_states, softplus, _uses_cuda(impl, u, A)
    )
    kept_states = A.new_empty(kept_shape(u, A, B, C, keep_states))
    y, final_states = problem.scan(int(return_final_states), kept_states)
    return y, problem.untiled(final_states) if return_final_states else A.new_empty(0), kept_states


@operator
def _selective_scan_backward(
    dy: Tensor, dfinal: Tensor | None, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None,
    z: Tensor | None, delta_bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None, kept_states: Tensor,
    softplus: bool, impl: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of the inputs in order, empty for an absent input."""
    problem = ScanProblem(
        u, delta, A, B, C, D, z, delta_bias, cu_seqlens, initial_states, softplus, _uses_cuda(impl, u, A)
    )
    gradients = problem.gradients(dy, dfinal, kept_states)
    dinitial = A.new_empty(0) if initial_states is None else gradients["initial"]
    return *_gradients_by_argument(problem, gradients, A, B, C, D, delta_bias), dinitial


def _gradients_by_argument(
    problem: ScanProblem, gradients: dict[str, Tensor], A: Tensor, B: Tensor, C: Tensor, D: Tensor | None,
    delta_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients in the order of the arguments, without initial states."""
    groups = (
        gradients[name].sum(1) if problem.has_mixed_groups and x.ndim == 2 else gradients[name]
        for name, x in (("B", B), ("C", C))
    )
    dB, dC = (value.to(x.dtype).reshape(x.shape).contiguous() for value, x in zip(groups, (B, C), strict=True))
    return (
        gradients["u"],
        gradients["delta"],
        gradients["A"],
        dB,
        dC,
        A.new_empty(0) if D is None else gradients["D"],
        gradients["z"],
        A.new_empty(0) if delta_bias is None else gradients["bias"],
    )


@fake(_selective_scan)
def _(
    u, delta, A, B, C, D, z, delta_bias, cu_seqlens, initial_states, softplus, return_final_states, keep_states, impl
):
    sizes = _bind(u, delta, A, B, C, D, z, delta_bias, cu_seqlens, initial_states, values=False)
    final_states = empty_output(SELECTIVE_SCAN, "final_states", u, sizes) if return_final_states else A.new_empty(0)
    return empty_output(SELECTIVE_SCAN, "y", u, sizes), final_states, A.new_empty(kept_shape(u, A, B, C, keep_states))


@fake(_selective_scan_backward)
def _(dy, dfinal, u, delta, A, B, C, D, z, delta_bias, cu_seqlens, initial_states, kept_states, softplus, impl):
    return empty_gradients(SELECTIVE_SCAN, u, delta, A, B, C, D, z, delta_bias, initial_states)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.softplus, ctx.has_final_states, _, ctx.impl = inputs
    ctx.set_materialize_grads(False)  # zeros for the kept states would be as large as they are
    ctx.save_for_backward(*tensors, output[2])


def _backward(ctx: Any, dy: Tensor | None, dfinal: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    dy = torch.zeros_like(ctx.saved_tensors[0]) if dy is None else dy
    dfinal_states = dfinal if ctx.has_final_states else None
    all_gradients = list[Tensor | None](
        _selective_scan_backward(dy, dfinal_states, *ctx.saved_tensors, ctx.softplus, ctx.impl)
    )
    all_gradients.insert(8, None)  # cu_seqlens
    gradients = (g if needed else None for g, needed in zip(all_gradients, ctx.needs_input_grad, strict=False))
    return *gradients, *[None] * 4


differentiable(_selective_scan, _backward, _save)
differentiable_once(_selective_scan_backward, SELECTIVE_SCAN.op)


def forward_over_ranks(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, cu_seqlens: Tensor, *, softplus: bool, leaves: bool,
) -> Generator[tuple[Tensor, Tensor] | None, Tensor | None, tuple[Tensor, Tensor]]:  # fmt: skip
    """One sequence of a pack cut over ranks, as a generator.

    Yields the state (1, d, n) at the end of the rank's tokens, starting from zero, and the product of its decays (d,
    n); None if the sequence ends on this rank. Is sent the state before the rank's tokens, or None. Returns y and the
    states kept for backward.
    """
    tensors, native, leaving_state = (u, delta, A, B, C, D, z, delta_bias), _uses_cuda("auto", u, A), None
    problem = ScanProblem(*tensors, cu_seqlens, None, softplus, native)
    # on all ranks before the exchange, so no rank waits for this work of another
    piece_states = problem.find_piece_states(1)
    if leaves:
        leaving_state = (
            _leaving_state(
                problem, piece_states.with_copied_states(), u, delta, A, B, delta_bias, cu_seqlens, softplus
            ),
            _total_decay(problem, piece_states, delta, A, delta_bias, softplus),
        )
    entering = yield leaving_state
    problem = ScanProblem(*tensors, cu_seqlens, entering, softplus, native)
    kept_states = A.new_empty(kept_shape(u, A, B, C, True))
    return problem.scan(0, kept_states, piece_states)[0], kept_states


def backward_over_ranks(
    dy: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None, kept_states: Tensor,
    *, softplus: bool,
) -> Generator[Tensor | None, Tensor | None, tuple[Tensor, ...]]:  # fmt: skip
    """The backward pass of `forward_over_ranks`, as a generator.

    Yields the gradient of the initial state from the rank's own outputs, None without an initial state. Is sent the
    gradient of the state at the end, or None. Returns the gradients of the inputs, empty for an absent one.
    """
    tensors, dy = (u, delta, A, B, C, D, z, delta_bias), dense_rows(dy)
    problem = ScanProblem(*tensors, cu_seqlens, initial_states, softplus, _uses_cuda("auto", u, A))
    piece_gradients, entering = problem.find_piece_gradients(dy), None
    if initial_states is not None:
        entering = _entering_gradient(
            problem, piece_gradients.with_copied_states(), dy, delta, A, C, z, delta_bias, cu_seqlens, softplus
        )
    dfinal = yield entering
    return _gradients_by_argument(
        problem, problem.gradients(dy, dfinal, kept_states, piece_gradients), A, B, C, D, delta_bias
    )


def forward_on_one_rank(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, cu_seqlens: Tensor, *, softplus: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sequences of a rank that no other rank shares. The first one may begin after the first row.

    Returns y, arbitrary before the first sequence, and the states kept for backward.
    """
    y, _, kept_states = _selective_scan(
        u, delta, A, B, C, D, z, delta_bias, cu_seqlens, None, softplus, False, True, "auto"
    )
    return y, kept_states


def backward_on_one_rank(
    dy: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, cu_seqlens: Tensor, kept_states: Tensor, *, softplus: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of the inputs of `forward_on_one_rank`, empty for an absent one."""
    gradients: tuple[Tensor, ...] = _selective_scan_backward(
        dy, None, u, delta, A, B, C, D, z, delta_bias, cu_seqlens, None, kept_states, softplus, "auto"
    )
    return gradients[:-1]


def _leaving_state(
    problem: ScanProblem, piece_states: PieceStates, u: Tensor, delta: Tensor, A: Tensor, B: Tensor,
    bias: Tensor | None, cu_seqlens: Tensor, softplus: bool,
) -> Tensor:  # fmt: skip
    """The state at the end, starting from zero.

    The kernels have it after the whole pieces. The remaining tokens are a piece of their own; zeros before them fill it
    up and leave the state zero.
    """
    size = problem.tiles.ends["SIZE"]
    n_remaining = len(u) % size
    ends, final_states = problem.states(1, piece_states)
    if not n_remaining:
        return problem.untiled(final_states)
    n_zeros = size - n_remaining
    last_u, last_delta, last_B = (_prepend_zeros(x[len(x) - n_remaining :], n_zeros) for x in (u, delta, B))
    last_piece = ScanProblem(
        last_u, last_delta, A, last_B, last_B, None, None, bias, _offsets(cu_seqlens, size), None, softplus, False
    )
    leaving_state = last_piece.untiled(last_piece.states(1)[1])
    if len(u) < size:
        return leaving_state
    return _decay(delta[len(u) - n_remaining :], A, bias, softplus) * problem.untiled(ends[-1:]) + leaving_state


def _entering_gradient(
    problem: ScanProblem, piece_gradients: PieceStates, dy: Tensor, delta: Tensor, A: Tensor, C: Tensor,
    z: Tensor | None, bias: Tensor | None, cu_seqlens: Tensor, softplus: bool,
) -> Tensor:  # fmt: skip
    """The gradient of the state before the first token, from the outputs of these tokens alone.

    The kernels have it after the first piece. The first piece itself follows a piece of zeros in a second problem.
    """
    size = problem.tiles.ends["SIZE"]
    backs, _ = problem.gradients_of_states(dy, problem.A, 0, piece_gradients)
    first_dy, first_delta, first_C = (_prepend_zeros(x[:size], size) for x in (dy, delta, C))
    first_z = None if z is None else _prepend_zeros(z[:size], size)
    offsets = _offsets(cu_seqlens, size + min(size, len(dy)))
    tensors = (first_dy, first_delta, A, first_C, first_C, None, first_z, bias)
    first_piece = ScanProblem(*tensors, offsets, None, softplus, False)
    entering = first_piece.untiled(first_piece.gradients_of_states(first_dy, first_piece.A, 0)[0][:1])
    if len(dy) <= size:
        return entering
    return entering + _decay(delta[:size], A, bias, softplus) * problem.untiled(backs[:1])


def _total_decay(
    problem: ScanProblem, piece_states: PieceStates, delta: Tensor, A: Tensor, bias: Tensor | None, softplus: bool
) -> Tensor:
    """The product of the decays of all tokens, (d, n). The steps of whole pieces are already summed."""
    remaining_delta = delta[len(piece_states.sums) * problem.tiles.ends["SIZE"] :]
    piece_steps = piece_states.sums.sum(0).view(problem.G, -1)[:, : problem.D // problem.G].reshape(-1)
    return torch.exp(A * (piece_steps + _steps(remaining_delta, bias, softplus))[:, None])


def _decay(delta: Tensor, A: Tensor, bias: Tensor | None, softplus: bool) -> Tensor:
    """The product of the decays of some tokens, (d, n)."""
    return torch.exp(A * _steps(delta, bias, softplus)[:, None])


def _steps(delta: Tensor, bias: Tensor | None, softplus: bool) -> Tensor:
    """The sum of the steps of some tokens, (d,)."""
    steps = delta.float() if bias is None else delta.float() + bias
    return (torch.nn.functional.softplus(steps) if softplus else steps).sum(0)


def _prepend_zeros(x: Tensor, rows: int) -> Tensor:
    return torch.cat([x.new_zeros(rows, *x.shape[1:]), x])


def _offsets(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """Offsets of one sequence of `tokens` tokens, on the device of cu_seqlens."""
    return torch.cat([cu_seqlens[:1], cu_seqlens[:1] + tokens])
