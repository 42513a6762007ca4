"""Structured state-space duality: one scalar decay per head (Mamba-2, Dao & Gu 2024), in its three equal forms."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from packproof.refs.arguments import bind
from packproof.refs.errors import ArgumentError
from packproof.refs.recurrence import Recurrence, over_time, state_space
from packproof.refs.segsum import segsum
from packproof.refs.signatures import SSD


def ssd_step(h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """Advance one token: the state h is (h, p, n), x (h, p), dt and A (h,), B and C (h, n).

    dt is the time step itself, after bias and softplus. Returns the new h, and y of shape (h, p) before skip and gate.
    """
    h = torch.exp(dt * A)[:, None, None] * h + (dt[:, None] * x)[..., None] * B[:, None]
    return h, (h * C[:, None]).sum(-1)


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
) -> Tensor | tuple[Tensor, Tensor]:
    """SSD of packed sequences, token by token: h = exp(dt A) h + dt x Bᵀ, y = (h C + D x) silu(z).

    x, z: (t, h, p). dt: (t, h). B, C: (t, g, n); head i uses group i // (h / g). All share one float dtype.
    A, dt_bias: (h,). D: (h,) or (h, p). initial_states: (s, h, p, n). These are fp32, or fp64 with fp64 tokens.
    dt_softplus: the step is softplus(dt + dt_bias), where otherwise it is dt + dt_bias.
    cu_seqlens: int32 or int64 (s + 1,). Tokens past its end are slack: their output and gradients are zero.

    Returns y (t, h, p) in x's dtype and, with return_final_states, the states (s, h, p, n) in A's; an empty sequence
    returns its initial state. bf16 and fp16 compute in fp32. Raises ArgumentError or LayoutError for what does not fit.
    """
    return _ssd(
        _recurrent,
        *(x, dt, A, B, C, D, z, dt_bias),
        dt_softplus=dt_softplus,
        cu_seqlens=cu_seqlens,
        initial_states=initial_states,
        return_final_states=return_final_states,
    )


def ssd_quadratic(*args: Any, **options: Any) -> Tensor | tuple[Tensor, Tensor]:
    """`ssd`, same arguments and results, as masked attention (eq. 16): y = (L ∘ C Bᵀ) (dt x), L = exp(segsum(dt A))."""
    return _ssd(_quadratic, *args, **options)


def ssd_chunked(*args: Any, chunk: int = 64, **options: Any) -> Tensor | tuple[Tensor, Tensor]:
    """`ssd`, same arguments and results, as masked attention inside chunks and a recurrence between them (section 6).

    chunk: tokens in a chunk, at least 1. The first chunk starts where the sequence starts, the last one may be shorter.
    """
    if chunk < 1:
        raise ArgumentError(f"ssd_chunked: chunk is {chunk} but at least 1 token was expected")
    return _ssd(partial(_chunked, chunk), *args, **options)


def _ssd(
    recurrence: Recurrence,
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
) -> Tensor | tuple[Tensor, Tensor]:
    tensors = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    sizes = bind(SSD, cu_seqlens, **tensors, initial_states=initial_states, values=True)
    D = D[:, None] if D is not None and D.ndim == 1 else D
    y, final_states = state_space(
        recurrence,
        *(x, dt, A, B, C, D, z, dt_bias, initial_states),
        (sizes["h"], sizes["p"], sizes["n"]),
        softplus=dt_softplus,
        cu_seqlens=cu_seqlens,
    )
    return (y, final_states) if return_final_states else y


def _recurrent(h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    def step(h: Tensor, x: Tensor, dt: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        return ssd_step(h, x, dt, A, B, C)

    return over_time(step, h, x, dt, B, C)


def _quadratic(h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    log_decay = torch.cat([torch.zeros_like(A)[None], dt * A])  # the initial state enters as token 0
    L = segsum(log_decay.mT).exp()  # [h, i, j]: the part of token j that remains at token i
    from_h, to_end = L[:, :, 0], L[:, -1, 1:]
    scores = torch.einsum("ihn, jhn -> hij", C, B) * L[:, 1:, 1:]
    added = dt[..., None] * x
    y = torch.einsum("hij, jhp -> ihp", scores, added) + torch.einsum("hi, ihn, hpn -> ihp", from_h[:, 1:], C, h)
    h_end = torch.einsum("hj, jhp, jhn -> hpn", to_end, added, B) + from_h[:, -1, None, None] * h
    return y, h_end


def _chunked(chunk: int, h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    ys = []
    for x_c, dt_c, B_c, C_c in zip(*(torch.split(token, chunk) for token in (x, dt, B, C)), strict=True):
        y, h = _quadratic(h, x_c, dt_c, A, B_c, C_c)
        ys.append(y)
    return torch.cat(ys), h
