"""Selective scan: Mamba's recurrence, one diagonal state space per channel (Gu & Dao 2023, eq. 2 and Algorithm 2)."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from packproof.base.arguments import check_step
from packproof.base.errors import checked_call, copy_signature_of, typed_as
from packproof.base.signatures import SELECTIVE_SCAN, SELECTIVE_SCAN_STEP
from packproof.refs.recurrence import Gate, Recurrence, checked_arguments, gate, over_time, state_space

if TYPE_CHECKING:
    from packproof.refs import overloads

Result = Tensor | tuple[Tensor, Tensor]  # y, or y and the final states


@checked_call
def selective_scan_step(h: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """Advance one token: h is (d, n), u and delta (d,), A (d, n), B and C (n,) or (1, n) for all channels, or (d, n).

    delta is the time step itself, after bias and softplus. Returns the new h, and y of shape (d,) before skip and gate.
    Raises ArgumentError.

    >>> import torch
    >>> from packproof.refs import selective_scan_step
    >>> u, A, B = torch.ones(2), -torch.ones(2, 3), torch.ones(3)
    >>> h, y = selective_scan_step(torch.zeros(2, 3), u, u, A, B, B)
    >>> h.shape, y
    (torch.Size([2, 3]), tensor([3., 3.]))
    """
    check_step("selective_scan_step", SELECTIVE_SCAN_STEP, h=h, u=u, delta=delta, A=A, B=B, C=C)
    return _step(h, u, delta, A, B, C)


def _step(h: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.exp(delta[:, None] * A) * h + (delta * u)[:, None] * B
    return h, (h * C).sum(-1)


@typed_as(lambda: overloads.selective_scan)
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
) -> Result:
    """Selective scan of packed sequences, token by token: h = exp(Δ A) h + Δ B u, y = (C h + D u) silu(z).

    u, delta, z: (t, d), of one float dtype.
    A: (d, n) in fp32, or fp64 with fp64 tokens; 16 bits are allowed beside 16-bit tokens of that dtype, or fp32 tokens.
    B, C: (t, n) or (t, g, n), in u's dtype. Channel i uses group i // (d / g).
    D, delta_bias: (d,), with the dtypes of A.
    delta_softplus: Δ = softplus(delta + delta_bias); otherwise Δ = delta + delta_bias.
    cu_seqlens: int32 or int64 (s + 1,). Tokens past its end are slack: their output and gradients are zero.
    initial_states: (s, d, n) in fp32, or fp64 with fp64 tokens.

    Returns y (t, d) in u's dtype and, with return_final_states, the states (s, d, n), fp32 or fp64. An empty sequence
    returns its initial state. bf16 and fp16 compute in fp32. A gradient has the dtype of its input. Raises
    ArgumentError or LayoutError.

    >>> import torch
    >>> from packproof.refs import selective_scan
    >>> u, A, B = torch.ones(5, 2), -torch.ones(2, 3), torch.ones(5, 3)
    >>> y, states = selective_scan(u, u, A, B, B, cu_seqlens=torch.tensor([0, 2, 5]), return_final_states=True)
    >>> y[:, 0]  # the second sequence starts from nothing
    tensor([3.0000, 4.1036, 3.0000, 4.1036, 4.5096])
    >>> states.shape
    torch.Size([2, 2, 3])
    """
    return run_scan(_recurrent_form, **checked_arguments(SELECTIVE_SCAN, locals()))


@copy_signature_of(selective_scan)
def selective_scan_associative(**arguments: Any) -> Result:
    """`selective_scan`, same arguments and results, as a parallel prefix over (decay, input) pairs in log2(t) sweeps.

    (a, b) followed by (a', b') is (a a', a' b + b'): associative, so a kernel may scan in any tree (Blelloch 1990).

    >>> import torch
    >>> from packproof.refs import selective_scan_associative
    >>> u, A, B = torch.ones(5, 2), -torch.ones(2, 3), torch.ones(5, 3)
    >>> selective_scan_associative(u, u, A, B, B, cu_seqlens=torch.tensor([0, 2, 5]))[:, 0]
    tensor([3.0000, 4.1036, 3.0000, 4.1036, 4.5096])
    """
    return run_scan(_associative_form, **checked_arguments(SELECTIVE_SCAN, arguments))


def run_scan(
    recurrence: Recurrence,
    *,
    delta_softplus: bool = False,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    gate: Gate = gate,
    **tensors: Any,
) -> Result:
    """A selective scan by a recurrence, its arguments unchecked."""
    u, delta, A, B, C = (tensors[name] for name in ("u", "delta", "A", "B", "C"))
    D, z, bias = (tensors.get(name) for name in ("D", "z", "delta_bias"))
    y, final_states = state_space(
        recurrence,
        *(u, delta, A, B, C, D, z, bias, initial_states),
        tuple(A.shape),
        softplus=delta_softplus,
        cu_seqlens=cu_seqlens,
        gate=gate,
    )
    return (y, final_states) if return_final_states else y


def _recurrent_form(h: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    def step(h: Tensor, u: Tensor, delta: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        return _step(h, u, delta, A, B, C)

    return over_time(step, h, u, delta, B, C)


def _associative_form(h: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    decay = torch.exp(delta[..., None] * A)
    inputs = (delta * u)[..., None] * B
    decay, inputs = torch.cat([torch.ones_like(h)[None], decay]), torch.cat([h[None], inputs])  # h enters as token 0
    reach = 1
    while reach < len(inputs):
        # [i] becomes [i - reach] followed by [i]; each then stands for the 2 * reach tokens that end at i
        inputs = torch.cat([inputs[:reach], decay[reach:] * inputs[:-reach] + inputs[reach:]])
        decay = torch.cat([decay[:reach], decay[reach:] * decay[:-reach]])
        reach *= 2
    return (inputs[1:] * C).sum(-1), inputs[-1]
