"""The launches of SSD's backward pass: from the gradients of outputs and final states to those of the inputs."""

# mypy: allow-untyped-calls

from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from packproof.kernels.launch import cdiv
from packproof.kernels.slack import zero_slack
from packproof.kernels.ssd_bwd import (
    _ssd_bwd_fused_x_kernel,
    _ssd_bwd_gate_kernel,
    _ssd_bwd_inter_chunk_kernel,
    _ssd_bwd_intra_chunk_kernel,
    _ssd_bwd_x_kernel,
)
from packproof.kernels.ssd_cuda_launch import HopperBackward
from packproof.kernels.ssd_launch import CarriedStates, SsdProblem, align_rows
from packproof.kernels.ssd_tiles import Rows, inter_chunk_form, row_classes


class IncomingGradient(NamedTuple):
    """The gradient of the outputs before the gate (t, h, p). All three are the same tensor where there is no gate."""

    full: Tensor
    """In fp32."""
    high: Tensor
    """Rounded to the kernels' dtype."""
    low: Tensor
    """The remainder after rounding."""


class BackwardStart(NamedTuple):
    """The backward pass before the gradients of states."""

    states: Tensor
    """Between chunks."""
    dz: Tensor
    """The gradient of z, empty without a gate."""
    incoming: IncomingGradient
    """The gradient of the outputs."""
    fused: bool
    """Whether one kernel both carries the gradients of states and finds dx."""
    hopper: HopperBackward | None
    """Kernels in CUDA C++ that take the place of some in Triton."""


class ChunkGradients(NamedTuple):
    """The gradients that kernels find chunk by chunk, without dD."""

    dt: Tensor
    A: Tensor
    """By token, (h, t), as that of the bias."""
    bias: Tensor
    B: Tensor
    C: Tensor

    def arguments(self) -> dict[str, Tensor]:
        """The parameters of kernels."""
        return {f"d{name}": gradient for name, gradient in self._asdict().items()}


class Gradients(NamedTuple):
    """The gradients of the inputs. Absent inputs have an empty or zero one.

    Gradients of tokens are zero in slack and have the kernels' dtype.
    """

    x: Tensor
    dt: Tensor
    A: Tensor
    """By token, (h, t)."""
    B: Tensor
    C: Tensor
    D: Tensor
    z: Tensor
    bias: Tensor
    """By token, (h, t)."""
    initial_states: Tensor


def ssd_gradients(
    problem: SsdProblem, dy: Tensor, dfinal: Tensor | None, z: Tensor | None, ends: Tensor,
    hopper: HopperBackward | None = None,
) -> Gradients:  # fmt: skip
    """The gradients of the inputs.

    ends: the states between segments, from forward.
    hopper: kernels in CUDA C++ for a call without a gate.
    """
    return finish_backward(problem, begin_backward(problem, dy, z, ends, hopper), dfinal)


def begin_backward(
    problem: SsdProblem, dy: Tensor, z: Tensor | None, ends: Tensor, hopper: HopperBackward | None = None
) -> BackwardStart:
    """The first part of the backward pass. It needs no gradient of states."""
    if hopper is not None:
        carried = CarriedStates(ends, problem.new(0), hopper.states(ends))
    else:
        values, keys, entering = problem.x, problem.B, problem.initial
        carried = problem.carry(values, keys, entering, ends=ends, keep_final=False, store=True, reverse=False)
    dy, dz = align_rows(dy.to(problem.dtype)), problem.new(0)
    incoming = IncomingGradient(dy, dy, dy)
    if z is not None:
        y = problem.outputs(carried, None, torch.float32, fused=False)
        dz, incoming = ungate(problem, y, align_rows(z.to(problem.dtype)), dy)
    fused = hopper is not None or (problem.fused and z is None)
    return BackwardStart(carried.states, dz, incoming, fused, hopper)


def finish_backward(
    problem: SsdProblem,
    backward_start: BackwardStart,
    dfinal: Tensor | None,
    segment_gradients: CarriedStates | None = None,
) -> Gradients:
    """The gradients of the inputs.

    segment_gradients: from `find_segment_states` of the gradient of the outputs and C. With them there is no gradient
    of initial states.
    """
    (states, dz, incoming, fused, hopper), dfinal = backward_start, problem.pad_states(dfinal)
    dy, keep_final = incoming.full, problem.initial is not None and segment_gradients is None
    if hopper is not None and segment_gradients is None and not keep_final and problem.T > problem.tiles.segment:
        segment_gradients = hopper.segment_gradients(keep_initial=False)
    back = problem.carry(
        dy, problem.C, dfinal, keep_final=keep_final, store=not fused, reverse=True, segment_states=segment_gradients
    )
    dx = x_gradient(problem, dy, dfinal, back, fused=fused, hopper=hopper)
    kinds, of_long_chunks, dD = row_classes(problem.tiles), None, None
    if hopper is not None:  # first, so that its memory is free for what follows
        kinds, of_long_chunks = kinds[1:], new_chunk_gradients(problem)
        edges = (round_states(edge_states, states) for edge_states in (problem.initial, dfinal))
        dD = hopper.chunk_gradients(
            states, back.states, *edges, has_final=dfinal is not None, **of_long_chunks.arguments()
        )
    between = inter_chunk(problem, dy, states, dfinal, back, kinds)
    chunks = of_long_chunks or new_chunk_gradients(problem)
    of_D = intra_chunk(problem, incoming, between, chunks, kinds, has_final=dfinal is not None)
    (ddt, dA, dbias, dB, dC), dD = chunks, of_D if dD is None else of_D + dD
    zero_slack(problem.cu_seqlens, dx, ddt, dB, dC)
    dD = dD[..., : problem.p]
    dx, dB, dC = dx[..., : problem.p], dB[..., : problem.n], dC[..., : problem.n]
    dinitial = problem.trim_states(back.finals) if keep_final else problem.new(0)
    return Gradients(dx, ddt, dA, dB, dC, dD, dz[..., : problem.p], dbias, dinitial)


def ungate(problem: SsdProblem, y: Tensor, z: Tensor, dy: Tensor) -> tuple[Tensor, IncomingGradient]:
    """dz, and the gradient of y, the outputs before the gate in fp32."""
    T, H, P, gate = problem.T, problem.H, problem.P, problem.tiles.gate
    dz, high, low = (problem.new(T, H, P, dtype=problem.dtype) for _ in range(3))
    programs = cdiv(T, gate["BLOCK_T"]) * H * cdiv(P, gate["BLOCK_P"])
    problem.launch(
        _ssd_bwd_gate_kernel, "gate", programs, y=y, z=z, dz=dz, high=high, low=low, z_stride=z.stride(0),
        z_head=z.stride(1), **_dy_arguments(dy), **gate,
    )  # fmt: skip
    return dz, IncomingGradient(y, high, low)


def x_gradient(
    problem: SsdProblem, dy: Tensor, dfinal: Tensor | None, carried: CarriedStates,
    *, fused: bool, hopper: HopperBackward | None,
) -> Tensor:  # fmt: skip
    """dx.

    carried: gradients of states.
    fused: the gradients of states between chunks are still missing; the fused kernel finds and stores them.
    """
    t, H, P = problem.tiles, problem.H, problem.P
    blocks = cdiv(P, t.dx_p)
    if hopper is None:
        dx = problem.new(problem.T, H, P, dtype=problem.dtype)
    else:
        dx = hopper.x_gradient(dfinal, carried.ends, carried.states)
    arguments = {**_dy_arguments(dy), "dstates": carried.states, "dx": dx, "has_final": int(dfinal is not None)}
    if fused and hopper is None:
        problem.launch(
            _ssd_bwd_fused_x_kernel, "fused_x", problem.items(H * cdiv(P, t.output_p)), **arguments,
            dfinal=problem.steps.high if dfinal is None else dfinal, dends=carried.ends,
            segments=problem.work.segments[0], BLOCK_P=t.output_p, BLOCK_N=problem.fused_block_n,
        )  # fmt: skip
    for rows in row_classes(t)[int(fused) :]:  # only the short ones if the fused kernel takes the long ones
        heads, n_blocks = problem.head_blocks(rows)
        problem.launch(
            _ssd_bwd_x_kernel, problem.option_name("x" + rows.label, dy), problem.items(n_blocks * blocks), **arguments,
            dfinal=round_states(dfinal, carried.states), n_blocks=n_blocks,
            chunks=problem.work.segments[rows.kind] if fused else problem.chunks(rows),
            ROWS=rows.rows, HEADS=heads, BLOCK_P=t.dx_p, BLOCK_K=rows.block_k,
        )  # fmt: skip
    return dx


def inter_chunk(
    problem: SsdProblem, dy: Tensor, states: Tensor, dfinal: Tensor | None, back: CarriedStates, kinds: list[Rows]
) -> dict[str, Tensor]:
    """The contributions of the states at the edges of chunks, and of their gradients, to other gradients, in fp32.

    For chunks of some kinds.

    entered, left: to the gradients of decays, (h, t).
    of_B, of_C: to dB and dC, (t, g, n).
    """
    t, T, N, whole_heads = problem.tiles, problem.T, problem.N, _has_whole_heads(problem, dy)
    n_parts = cdiv(N, t.columns)
    entered_parts, left_parts = (problem.new(n_parts, problem.H, T) for _ in range(2))
    of_B, of_C = (problem.new(T, problem.G, N) for _ in range(2))
    between = {"dfinal": back.states, "dstates": back.states} | inter_chunk_form(t, whole_heads=whole_heads)
    forms = {"_whole" * whole_heads: between}
    if dfinal is not None or T > t.segment:
        at_ends = {"dfinal": back.ends if dfinal is None else dfinal, "dstates": back.ends}
        forms["_ends"] = at_ends | inter_chunk_form(t, ends=True)
    for rows, (label, form) in product(kinds, forms.items()):
        problem.launch(
            _ssd_bwd_inter_chunk_kernel, problem.option_name("inter_chunk" + rows.label + label, dy),
            problem.items(problem.G * n_parts), **_dy_arguments(dy), **form, chunks=problem.chunks(rows),
            entering=round_states(problem.initial, states), states=states,
            has_entering=int(problem.initial is not None), has_final=int(dfinal is not None),
            entered=entered_parts, left=left_parts, dB=of_B, dC=of_C, ROWS=rows.rows,
        )  # fmt: skip
    return {"entered": entered_parts.sum(0), "left": left_parts.sum(0), "of_B": of_B, "of_C": of_C}


def new_chunk_gradients(problem: SsdProblem) -> ChunkGradients:
    """Memory for them, with zeros in what is summed over all tokens."""
    T, H, G, N = problem.T, problem.H, problem.G, problem.N
    dA, dbias = problem.x.new_zeros(2, H, T, dtype=torch.float32)
    ddt = problem.new(T, H, dtype=problem.dtype)
    return ChunkGradients(ddt, dA, dbias, *(problem.new(T, G, N, dtype=problem.dtype) for _ in range(2)))


def intra_chunk(
    problem: SsdProblem, dy: IncomingGradient, between: dict[str, Tensor], gradients: ChunkGradients,
    kinds: list[Rows], *, has_final: bool,
) -> Tensor:  # fmt: skip
    """Fills `gradients` for chunks of some kinds. Returns their part of dD (h, p), empty without a D.

    between: the result of `inter_chunk`.
    """
    t, gated, whole_heads = problem.tiles, dy.full.dtype != problem.dtype, _has_whole_heads(problem, dy.full)
    of_chunk = (problem.H, problem.P) if problem.has_D else (0,)
    # a chunk of another kind stays zero
    dD = problem.x.new_zeros(len(kinds), problem.slots, *of_chunk, dtype=torch.float32)
    for rows, of_kind in zip(kinds, dD, strict=True):
        problem.launch(
            _ssd_bwd_intra_chunk_kernel, "intra_chunk" + rows.label + "_whole" * whole_heads + "_gated" * gated,
            problem.items(problem.G), **_dy_arguments(dy.high), dy_low=dy.low, **between, dt=problem.softplus_of,
            chunks=problem.chunks(rows), **gradients.arguments(), dD=of_kind,
            has_entering=int(problem.initial is not None), has_final=int(has_final),
            GATED=gated, WHOLE=whole_heads, ROWS=rows.rows, BLOCK_P=t.intra_p, BLOCK_K=rows.block_k, COLUMNS=t.columns,
        )  # fmt: skip
    return dD.sum((0, 1))


def _has_whole_heads(problem: SsdProblem, dy: Tensor) -> bool:
    """Whether a loop over heads needs no loop over channels inside."""
    return problem.P <= problem.tiles.whole_p and dy.dtype == problem.dtype


def _dy_arguments(dy: Tensor) -> dict[str, Any]:
    return {"dy": dy, "dy_stride": dy.stride(0), "dy_head": dy.stride(1)}


def round_states(states: Tensor | None, boundary_states: Tensor) -> Tensor:
    """`states` in the dtype of `boundary_states`, or `boundary_states` if it is None."""
    return boundary_states if states is None else states.to(boundary_states.dtype)
