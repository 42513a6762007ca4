"""Selective scan: Mamba's recurrence, one diagonal state space per channel (Gu & Dao 2023, eq. 2 and Algorithm 2)."""

from typing import Any

import torch
from torch import Tensor

from packproof.refs.arguments import bind
from packproof.refs.recurrence import Recurrence, over_time, state_space
from packproof.refs.signatures import SELECTIVE_SCAN


def selective_scan_step(h: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """Advance one token: h is (d, n), u and delta (d,), A (d, n), B and C (d, n) or (1, n).

    delta is the time step itself, after bias and softplus. Returns the new h, and y of shape (d,) before skip and gate.
    """
    h = torch.exp(delta[:, None] * A) * h + (delta * u)[:, None] * B
    return h, (h * C).sum(-1)


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
) -> Tensor | tuple[Tensor, Tensor]:
    """Selective scan of packed sequences, token by token: h = exp(Δ A) h + Δ B u, y = (C h + D u) silu(z).

    u, delta, z: (t, d). B, C: (t, n) or (t, g, n); channel i uses group i // (d / g). All share one float dtype.
    A: (d, n). D, delta_bias: (d,). initial_states: (s, d, n). These are fp32, or fp64 with fp64 tokens.
    delta_softplus: Δ = softplus(delta + delta_bias), where otherwise Δ = delta + delta_bias.
    cu_seqlens: int32 or int64 (s + 1,). Tokens past its end are slack: their output and gradients are zero.

    Returns y (t, d) in u's dtype and, with return_final_states, the states (s, d, n) in A's; an empty sequence returns
    its initial state. bf16 and fp16 compute in fp32. Raises ArgumentError or LayoutError for what does not fit.
    """
    return _scan(
        _recurrent,
        *(u, delta, A, B, C, D, z, delta_bias),
        delta_softplus=delta_softplus,
        cu_seqlens=cu_seqlens,
        initial_states=initial_states,
        return_final_states=return_final_states,
    )


def selective_scan_associative(*args: Any, **options: Any) -> Tensor | tuple[Tensor, Tensor]:
    """`selective_scan`, same arguments and results, as a parallel prefix over (decay, input) pairs in log2(t) sweeps.

    (a, b) followed by (a', b') is (a a', a' b + b'): associative, so a kernel may scan in any tree (Blelloch 1990).
    """
    return _scan(_associative, *args, **options)


def _scan(
    recurrence: Recurrence,
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
) -> Tensor | tuple[Tensor, Tensor]:
    tensors = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias}
    sizes = bind(SELECTIVE_SCAN, cu_seqlens, **tensors, initial_states=initial_states, values=True)
    y, final_states = state_space(
        recurrence,
        *(u, delta, A, B, C, D, z, delta_bias, initial_states),
        (sizes["d"], sizes["n"]),
        softplus=delta_softplus,
        cu_seqlens=cu_seqlens,
    )
    return (y, final_states) if return_final_states else y


def _recurrent(h: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    def step(h: Tensor, u: Tensor, delta: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        return selective_scan_step(h, u, delta, A, B, C)

    return over_time(step, h, u, delta, B, C)


def _associative(h: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    decay = torch.exp(delta[..., None] * A)
    added = (delta * u)[..., None] * B
    decay, added = torch.cat([torch.ones_like(h)[None], decay]), torch.cat([h[None], added])  # h enters as token 0
    reach = 1
    while reach < len(added):
        # [i] becomes [i - reach] followed by [i]; each then stands for the 2 * reach tokens that end at i
        added = torch.cat([added[:reach], decay[reach:] * added[:-reach] + added[reach:]])
        decay = torch.cat([decay[:reach], decay[reach:] * decay[:-reach]])
        reach *= 2
    return (added[1:] * C).sum(-1), added[-1]
