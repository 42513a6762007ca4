"""The delta rule, with a gate per head or per key channel, each in three equal forms.

`delta_rule` (Schlag et al. 2021, eq. 24; Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule, eq.
2): each token replaces the value stored at its key. `gated_delta_rule` (Yang et al. 2025, Gated Delta Networks, eq.
10; Qwen3-Next) forgets first, by a gate per head; `kda` (Kimi Team 2025, Kimi Linear, eq. 1) by one per key channel.
`*_step` advances one token; `*_chunked` is the WY form inside chunks and a recurrence between them.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from packproof.base.arguments import check_step, finite_scale
from packproof.base.errors import checked_call, copy_signature_of, typed_as
from packproof.base.signatures import (
    DELTA_RULE,
    DELTA_RULE_STEP,
    GATED_DELTA_RULE,
    GATED_DELTA_RULE_STEP,
    KDA,
    KDA_STEP,
    Signature,
)
from packproof.refs.gated import (
    GatedRecurrence,
    Result,
    chunked_form,
    no_decay,
    outer,
    read_state,
    run_over_pack,
)
from packproof.refs.recurrence import checked_arguments, over_time, time_step

if TYPE_CHECKING:
    from packproof.refs import overloads

L2_EPSILON = 1e-6  # as in the models' kernels


def _step(S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The state after one more token, and y before its scale; g is (h, 1), or (h, k) for a gate per key channel."""
    S = torch.exp(g)[..., None] * S
    S = S + outer(k, beta[:, None] * (v - read_state(S, k)))
    return S, read_state(S, q)


@checked_call
def delta_rule_step(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Advance one token: S = S + β k (v - Sᵀ k)ᵀ, y = scale Sᵀ q. S is (h, k, p), q and k (h, k), v (h, p), beta (h,).

    scale: k ** -0.5 if left out.

    Returns the new S, and y (h, p). Raises ArgumentError.

    >>> import torch
    >>> from packproof.refs import delta_rule_step
    >>> k, v = torch.tensor([[1.0, 0.0]]), torch.tensor([[5.0]])
    >>> S, y = delta_rule_step(torch.ones(1, 2, 1), k, k, v, torch.ones(1), scale=1.0)  # replaces what S holds at k
    >>> S[0, :, 0], y
    (tensor([5., 1.]), tensor([[5.]]))
    """
    check_step("delta_rule_step", DELTA_RULE_STEP, S=S, q=q, k=k, v=v, beta=beta)
    S, y = _step(S, v, q, k, torch.zeros_like(beta)[:, None], beta)
    return S, finite_scale("delta_rule_step", scale, q.shape[-1]) * y


@checked_call
def gated_delta_rule_step(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Advance one token: S = exp(g) S, then the delta rule, with g (h,); all else as in `delta_rule_step`.

    >>> import torch
    >>> from packproof.refs import gated_delta_rule_step
    >>> k, v, g = torch.tensor([[1.0, 0.0]]), torch.tensor([[5.0]]), torch.tensor([-1.0])
    >>> S, y = gated_delta_rule_step(torch.ones(1, 2, 1), k, k, v, g, torch.ones(1), scale=1.0)
    >>> S[0, :, 0]
    tensor([5.0000, 0.3679])
    """
    check_step("gated_delta_rule_step", GATED_DELTA_RULE_STEP, S=S, q=q, k=k, v=v, g=g, beta=beta)
    S, y = _step(S, v, q, k, g[:, None], beta)
    return S, finite_scale("gated_delta_rule_step", scale, q.shape[-1]) * y


@checked_call
def kda_step(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Advance one token: S = exp(g) S, then the delta rule, with g (h, k); all else as in `delta_rule_step`.

    >>> import torch
    >>> from packproof.refs import kda_step
    >>> k, v, g = torch.tensor([[1.0, 0.0]]), torch.tensor([[5.0]]), torch.tensor([[-1.0, -2.0]])
    >>> S, y = kda_step(torch.ones(1, 2, 1), k, k, v, g, torch.ones(1), scale=1.0)
    >>> S[0, :, 0]
    tensor([5.0000, 0.1353])
    """
    check_step("kda_step", KDA_STEP, S=S, q=q, k=k, v=v, g=g, beta=beta)
    S, y = _step(S, v, q, k, g, beta)
    return S, finite_scale("kda_step", scale, q.shape[-1]) * y


@typed_as(lambda: overloads.delta_rule)
@checked_call
def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    qk_l2norm: bool = False,
    beta_sigmoid: bool = False,
    cu_seqlens: Tensor,
    scale: float | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result:
    """The delta rule over packed sequences, token by token: S = S + β k (v - Sᵀ k)ᵀ, y = scale Sᵀ q.

    The recurrence is stable if β |k|² is at most 2.

    q, k: (t, hk, k), in v's dtype.
    v: (t, hv, p). Value head j reads key head j // (hv / hk).
    beta: (t, hv), in v's dtype, or fp32 beside bf16 or fp16.
    qk_l2norm: divide q and k by their norms, sqrt(Σ x² + 1e-6).
    beta_sigmoid: β is sigmoid(beta).
    cu_seqlens: int32 or int64 (s + 1,). Tokens past its end are slack: their output and gradients are zero.
    scale: k ** -0.5 if left out.
    initial_states: (s, hv, k, p) in fp32, or fp64 with fp64 tokens.

    Returns y (t, hv, p) in v's dtype and, with return_final_states, the states (s, hv, k, p). An empty sequence returns
    its initial state. bf16 and fp16 compute in fp32. Raises ArgumentError or LayoutError.

    >>> import torch
    >>> from packproof.refs import delta_rule
    >>> k, v, beta = torch.full((5, 1, 4), 0.5), torch.ones(5, 1, 2), torch.full((5, 1), 0.5)
    >>> delta_rule(k, k, v, beta, cu_seqlens=torch.tensor([0, 2, 5]))[:, 0, 0]
    tensor([0.2500, 0.3750, 0.2500, 0.3750, 0.4375])
    """
    return run_delta_rule(delta_recurrence, DELTA_RULE, **locals())


@typed_as(lambda: overloads.delta_rule_chunked)
@copy_signature_of(delta_rule, chunk=64)
def delta_rule_chunked(chunk: int, **arguments: Any) -> Result:
    """`delta_rule`, same arguments and results, in chunks.

    chunk: tokens in a chunk. The first chunk starts with the sequence; the last one may be shorter.

    >>> import torch
    >>> from packproof.refs import delta_rule_chunked
    >>> k, v, beta = torch.full((5, 1, 4), 0.5), torch.ones(5, 1, 2), torch.full((5, 1), 0.5)
    >>> delta_rule_chunked(k, k, v, beta, cu_seqlens=torch.tensor([0, 2, 5]), chunk=2)[:, 0, 0]
    tensor([0.2500, 0.3750, 0.2500, 0.3750, 0.4375])
    """
    return run_delta_rule(chunked_form("delta_rule_chunked", chunk), DELTA_RULE, **arguments)


@typed_as(lambda: overloads.gated_delta_rule)
@checked_call
def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    qk_l2norm: bool = False,
    beta_sigmoid: bool = False,
    cu_seqlens: Tensor,
    scale: float | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result:
    """The gated delta rule over packed sequences, token by token: S = exp(g) S, then the delta rule.

    g: (t, hv), natural logarithms, from -inf to 0; in the dtype of the tokens, or fp32 beside bf16 or fp16.
    A_log: (hv,) in fp32, or fp64 with fp64 tokens. With it, the gate is -exp(A_log) softplus(g + dt_bias).
    dt_bias: (hv,), as A_log. Without A_log, the gate is g + dt_bias.

    All else is as in `delta_rule`.

    >>> import torch
    >>> from packproof.refs import gated_delta_rule
    >>> k, v, beta = torch.full((5, 1, 4), 0.5), torch.ones(5, 1, 2), torch.full((5, 1), 0.5)
    >>> g = -torch.ones(5, 1)
    >>> gated_delta_rule(k, k, v, g, beta, cu_seqlens=torch.tensor([0, 2, 5]))[:, 0, 0]
    tensor([0.2500, 0.2960, 0.2500, 0.2960, 0.3044])
    """
    return run_delta_rule(delta_recurrence, GATED_DELTA_RULE, **locals())


@typed_as(lambda: overloads.gated_delta_rule_chunked)
@copy_signature_of(gated_delta_rule, chunk=64)
def gated_delta_rule_chunked(chunk: int, **arguments: Any) -> Result:
    """`gated_delta_rule`, same arguments and results, in chunks.

    chunk: tokens in a chunk. The first chunk starts with the sequence; the last one may be shorter.

    >>> import torch
    >>> from packproof.refs import gated_delta_rule_chunked
    >>> k, v, beta = torch.full((5, 1, 4), 0.5), torch.ones(5, 1, 2), torch.full((5, 1), 0.5)
    >>> g = -torch.ones(5, 1)
    >>> gated_delta_rule_chunked(k, k, v, g, beta, cu_seqlens=torch.tensor([0, 2, 5]), chunk=2)[:, 0, 0]
    tensor([0.2500, 0.2960, 0.2500, 0.2960, 0.3044])
    """
    return run_delta_rule(chunked_form("gated_delta_rule_chunked", chunk), GATED_DELTA_RULE, **arguments)


@typed_as(lambda: overloads.kda)
@checked_call
def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    qk_l2norm: bool = False,
    beta_sigmoid: bool = False,
    cu_seqlens: Tensor,
    scale: float | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result:
    """Kimi delta attention over packed sequences, token by token: S = exp(g) S by key channel, then the delta rule.

    q, k: (t, h, k).
    v: (t, h, p).
    g: (t, h, k), natural logarithms, from -inf to 0.
    beta: (t, h).
    A_log: (h,).
    dt_bias: (h, k).
    initial_states: (s, h, k, p).

    All else is as in `gated_delta_rule`.

    >>> import torch
    >>> from packproof.refs import kda
    >>> k, v, beta = torch.full((5, 1, 4), 0.5), torch.ones(5, 1, 2), torch.full((5, 1), 0.5)
    >>> g = -torch.ones(5, 1, 4)
    >>> kda(k, k, v, g, beta, cu_seqlens=torch.tensor([0, 2, 5]))[:, 0, 0]
    tensor([0.2500, 0.2960, 0.2500, 0.2960, 0.3044])
    """
    return run_delta_rule(delta_recurrence, KDA, **locals())


@typed_as(lambda: overloads.kda_chunked)
@copy_signature_of(kda, chunk=64)
def kda_chunked(chunk: int, **arguments: Any) -> Result:
    """`kda`, same arguments and results, in chunks.

    chunk: tokens in a chunk. The first chunk starts with the sequence; the last one may be shorter.

    >>> import torch
    >>> from packproof.refs import kda_chunked
    >>> k, v, beta = torch.full((5, 1, 4), 0.5), torch.ones(5, 1, 2), torch.full((5, 1), 0.5)
    >>> g = -torch.ones(5, 1, 4)
    >>> kda_chunked(k, k, v, g, beta, cu_seqlens=torch.tensor([0, 2, 5]), chunk=2)[:, 0, 0]
    tensor([0.2500, 0.2960, 0.2500, 0.2960, 0.3044])
    """
    return run_delta_rule(chunked_form("kda_chunked", chunk), KDA, **arguments)


def run_delta_rule(form: GatedRecurrence, signature: Signature, **arguments: Any) -> Result:
    """An op of the delta rule in one of its forms."""
    checked_arguments(signature, arguments)
    q, k, v, beta = (arguments[name] for name in ("q", "k", "v", "beta"))
    g, A_log, dt_bias = (arguments.get(name) for name in ("g", "A_log", "dt_bias"))

    def recurrence(S: Tensor, v: Tensor, q: Tensor, k: Tensor, beta: Tensor, g: Tensor | None = None) -> Any:
        if arguments["qk_l2norm"]:
            q, k = _l2norm(q), _l2norm(k)
        beta = beta.sigmoid() if arguments["beta_sigmoid"] else beta
        return form(S, v, q, k, no_decay(v) if g is None else _decay_gate(g, A_log, dt_bias), beta)

    return run_over_pack(
        recurrence,
        *(q, k, v, beta, *(() if g is None else (g,))),
        scale=finite_scale(signature.op, arguments["scale"], k.shape[-1]),
        cu_seqlens=arguments["cu_seqlens"],
        initial_states=arguments["initial_states"],
        return_final_states=arguments["return_final_states"],
    )


def delta_recurrence(S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The delta rule of one sequence, token by token."""
    return over_time(_step, S, v, q, k, g, beta)


def _l2norm(x: Tensor) -> Tensor:
    """x over its Euclidean norm along the last axis."""
    return x / (x.square().sum(-1, keepdim=True) + L2_EPSILON).sqrt()


def _decay_gate(g: Tensor, A_log: Tensor | None, dt_bias: Tensor | None) -> Tensor:
    """The gate (t, h, 1) or (t, h, k): -exp(A_log) softplus(g + dt_bias), or g + dt_bias without A_log."""
    gate = time_step(g, dt_bias, A_log is not None)
    if A_log is not None:
        gate = -torch.exp(A_log if g.ndim == 2 else A_log[:, None]) * gate
    return gate[..., None] if g.ndim == 2 else gate
