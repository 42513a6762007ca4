"""Structured state-space duality: one scalar decay per head (Mamba-2, Dao & Gu 2024), in its three equal forms."""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from packproof.base.arguments import check_step, whole_number
from packproof.base.errors import ArgumentError, checked_call, copy_signature_of, typed_as
from packproof.base.signatures import SSD, SSD_STEP
from packproof.refs.recurrence import Gate, Recurrence, checked_arguments, gate, over_time, state_space
from packproof.refs.segsum import segsum

if TYPE_CHECKING:
    from packproof.refs import overloads

Result = Tensor | tuple[Tensor, Tensor]  # y, or y and the final states


@checked_call
def ssd_step(h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """Advance one token: the state h is (h, p, n), x (h, p), dt and A (h,), B and C (h, n).

    dt is the time step itself, after bias and softplus. Returns the new h, and y of shape (h, p) before skip and gate.
    Raises ArgumentError.

    >>> import torch
    >>> from packproof.refs import ssd_step
    >>> h, y = ssd_step(torch.zeros(2, 3, 4), torch.ones(2, 3), torch.ones(2), -torch.ones(2), *torch.ones(2, 2, 4))
    >>> h.shape, y[0]
    (torch.Size([2, 3, 4]), tensor([4., 4., 4.]))
    """
    check_step("ssd_step", SSD_STEP, h=h, x=x, dt=dt, A=A, B=B, C=C)
    return _step(h, x, dt, A, B, C)


def advance(h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """The state after one more token."""
    return torch.exp(dt * A)[:, None, None] * h + (dt[:, None] * x)[..., None] * B[:, None]


def _step(h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    h = advance(h, x, dt, A, B)
    return h, (h * C[:, None]).sum(-1)


@typed_as(lambda: overloads.ssd)
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
) -> Result:
    """SSD of packed sequences, token by token: h = exp(dt A) h + dt x Bᵀ, y = (h C + D x) silu(z).

    x, z: (t, h, p), of one float dtype.
    dt: (t, h), in x's dtype.
    A, dt_bias: (h,) in fp32, or fp64 with fp64 tokens; 16 bits are allowed beside 16-bit tokens of that dtype, or fp32
    tokens.
    B, C: (t, g, n), in x's dtype. Head i uses group i // (h / g).
    D: (h,) or (h, p), with the dtypes of A.
    dt_softplus: the step is softplus(dt + dt_bias); otherwise it is dt + dt_bias.
    cu_seqlens: int32 or int64 (s + 1,). Tokens past its end are slack: their output and gradients are zero.
    initial_states: (s, h, p, n) in fp32, or fp64 with fp64 tokens.

    Returns y (t, h, p) in x's dtype and, with return_final_states, the states (s, h, p, n), fp32 or fp64. An empty
    sequence returns its initial state. bf16 and fp16 compute in fp32. A gradient has the dtype of its input. Raises
    ArgumentError or LayoutError.

    >>> import torch
    >>> from packproof.refs import ssd
    >>> x, dt, A, B = torch.ones(5, 1, 2), torch.ones(5, 1), -torch.ones(1), torch.ones(5, 1, 3)
    >>> y, states = ssd(x, dt, A, B, B, cu_seqlens=torch.tensor([0, 2, 5]), return_final_states=True)
    >>> y[:, 0, 0]  # the second sequence starts from nothing
    tensor([3.0000, 4.1036, 3.0000, 4.1036, 4.5096])
    >>> states.shape
    torch.Size([2, 1, 2, 3])
    """
    return run_ssd(_recurrent_form, **checked_arguments(SSD, locals()))


@copy_signature_of(ssd)
def ssd_quadratic(**arguments: Any) -> Result:
    """`ssd`, same arguments and results, as masked attention (eq. 16): y = (L ∘ C Bᵀ) (dt x), L = exp(segsum(dt A)).

    >>> import torch
    >>> from packproof.refs import ssd_quadratic
    >>> x, dt, A, B = torch.ones(5, 1, 2), torch.ones(5, 1), -torch.ones(1), torch.ones(5, 1, 3)
    >>> ssd_quadratic(x, dt, A, B, B, cu_seqlens=torch.tensor([0, 2, 5]))[:, 0, 0]
    tensor([3.0000, 4.1036, 3.0000, 4.1036, 4.5096])
    """
    return run_ssd(_quadratic_form, **checked_arguments(SSD, arguments))


@typed_as(lambda: overloads.ssd_chunked)
@copy_signature_of(ssd, chunk=64)
def ssd_chunked(chunk: int, **arguments: Any) -> Result:
    """`ssd`, same arguments and results, as masked attention inside chunks and a recurrence between them (section 6).

    `ssd_intermediates` returns the parts of this form.

    chunk: tokens in a chunk, at least 1. The first chunk starts with the sequence; the last one may be shorter.

    >>> import torch
    >>> from packproof.refs import ssd_chunked
    >>> x, dt, A, B = torch.ones(5, 1, 2), torch.ones(5, 1), -torch.ones(1), torch.ones(5, 1, 3)
    >>> ssd_chunked(x, dt, A, B, B, cu_seqlens=torch.tensor([0, 2, 5]), chunk=2)[:, 0, 0]
    tensor([3.0000, 4.1036, 3.0000, 4.1036, 4.5096])
    """
    size = whole_number("ssd_chunked", "chunk", chunk, 1, ArgumentError)
    return run_ssd(partial(_chunked_form, size), **checked_arguments(SSD, arguments))


def run_ssd(
    recurrence: Recurrence,
    *,
    dt_softplus: bool = False,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    gate: Gate = gate,
    **tensors: Any,
) -> Result:
    """SSD by a recurrence, its arguments unchecked."""
    x, dt, A, B, C = (tensors[name] for name in ("x", "dt", "A", "B", "C"))
    D, z, dt_bias = (tensors.get(name) for name in ("D", "z", "dt_bias"))
    y, final_states = state_space(
        recurrence,
        *(x, dt, A, B, C, D[:, None] if D is not None and D.ndim == 1 else D, z, dt_bias, initial_states),
        (*x.shape[1:], B.shape[-1]),
        softplus=dt_softplus,
        cu_seqlens=cu_seqlens,
        gate=gate,
    )
    return (y, final_states) if return_final_states else y


def _recurrent_form(h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    def step(h: Tensor, x: Tensor, dt: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        return _step(h, x, dt, A, B, C)

    return over_time(step, h, x, dt, B, C)


class ChunkParts(NamedTuple):
    """One chunk as masked attention, split into the contributions of its own tokens and of the state before it."""

    log_decay: Tensor
    """(t, h), of the state before the chunk, at each token."""
    diagonal: Tensor
    """(t, h, p), the part of y from the chunk's own tokens."""
    off_diagonal: Tensor
    """(t, h, p), the part of y from the state before the chunk."""
    chunk_state: Tensor
    """(h, p, n), the part of the state at the end from the chunk's own tokens."""
    passed_state: Tensor
    """(h, p, n), the part of the state at the end from the state before the chunk."""


def chunk_parts(h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> ChunkParts:
    """The parts of one chunk, from the state h before it."""
    log_decay = segsum(torch.cat([torch.zeros_like(A)[None], dt * A]).mT)  # the initial state enters as token 0
    L = log_decay.exp()  # [h, i, j]: the decay from token j to token i
    from_h, to_end = L[:, :, 0], L[:, -1, 1:]
    scores = torch.einsum("ihn, jhn -> hij", C, B) * L[:, 1:, 1:]
    inputs = dt[..., None] * x
    return ChunkParts(
        log_decay[:, 1:, 0].mT,
        diagonal=torch.einsum("hij, jhp -> ihp", scores, inputs),
        off_diagonal=torch.einsum("hi, ihn, hpn -> ihp", from_h[:, 1:], C, h),
        chunk_state=torch.einsum("hj, jhp, jhn -> hpn", to_end, inputs, B),
        passed_state=from_h[:, -1, None, None] * h,
    )


def _quadratic_form(h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    parts = chunk_parts(h, x, dt, A, B, C)
    return parts.diagonal + parts.off_diagonal, parts.chunk_state + parts.passed_state


def _chunked_form(
    chunk: int, h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor
) -> tuple[Tensor, Tensor]:
    ys = []
    for x_c, dt_c, B_c, C_c in zip(*(torch.split(token, chunk) for token in (x, dt, B, C)), strict=True):
        y, h = _quadratic_form(h, x_c, dt_c, A, B_c, C_c)
        ys.append(y)
    return torch.cat(ys), h
