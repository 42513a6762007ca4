"""The delta rule, with a gate per head or per key channel, each in three equal forms.

`delta_rule` (Schlag et al. 2021, eq. 24; Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule, eq.
2): each token replaces the value stored at its key. `gated_delta_rule` (Yang et al. 2025, Gated Delta Networks, eq.
10; Qwen3-Next) forgets first, by a gate per head; `kda` (Kimi Team 2025, Kimi Linear, eq. 1) by one per key channel.
`*_step` advances one token; `*_chunked` is the WY form inside chunks and a recurrence between them.
"""

from functools import partial
from typing import Literal, overload

import torch
from torch import Tensor

from packproof.refs import gated
from packproof.refs.arguments import check_step, finite_scale, whole_number
from packproof.refs.errors import ArgumentError, checked_call
from packproof.refs.gated import Result
from packproof.refs.signatures import (
    DELTA_RULE,
    DELTA_RULE_STEP,
    GATED_DELTA_RULE,
    GATED_DELTA_RULE_STEP,
    KDA,
    KDA_STEP,
)


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
    factor = finite_scale("delta_rule_step", scale, q.shape[-1])
    S, y = gated.delta_step(S, v, q, k, torch.zeros_like(beta)[:, None], beta)
    return S, factor * y


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
    factor = finite_scale("gated_delta_rule_step", scale, q.shape[-1])
    S, y = gated.delta_step(S, v, q, k, g[:, None], beta)
    return S, factor * y


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
    factor = finite_scale("kda_step", scale, q.shape[-1])
    S, y = gated.delta_step(S, v, q, k, g, beta)
    return S, factor * y


@overload
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, qk_l2norm: bool = False, beta_sigmoid: bool = False,
    cu_seqlens: Tensor, scale: float | None = None, initial_states: Tensor | None = None,
    return_final_states: Literal[False] = False,
) -> Tensor: ...  # fmt: skip
@overload
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, qk_l2norm: bool = False, beta_sigmoid: bool = False,
    cu_seqlens: Tensor, scale: float | None = None, initial_states: Tensor | None = None,
    return_final_states: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, qk_l2norm: bool = False, beta_sigmoid: bool = False,
    cu_seqlens: Tensor, scale: float | None = None, initial_states: Tensor | None = None, return_final_states: bool,
) -> Result: ...  # fmt: skip
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
    tensors = {"q": q, "k": k, "v": v, "beta": beta, "initial_states": initial_states}
    options = {"qk_l2norm": qk_l2norm, "beta_sigmoid": beta_sigmoid, "return_final_states": return_final_states}
    return gated.run_delta_rule(gated.delta_recurrence, DELTA_RULE, cu_seqlens, tensors, options, scale)


@checked_call
def delta_rule_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    chunk: int = 64,
    qk_l2norm: bool = False,
    beta_sigmoid: bool = False,
    cu_seqlens: Tensor,
    scale: float | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result:
    """`delta_rule`, same arguments and results, in chunks.

    chunk: tokens in a chunk. The first chunk starts with the sequence; the last one may be shorter.

    >>> import torch
    >>> from packproof.refs import delta_rule_chunked
    >>> k, v, beta = torch.full((5, 1, 4), 0.5), torch.ones(5, 1, 2), torch.full((5, 1), 0.5)
    >>> delta_rule_chunked(k, k, v, beta, cu_seqlens=torch.tensor([0, 2, 5]), chunk=2)[:, 0, 0]
    tensor([0.2500, 0.3750, 0.2500, 0.3750, 0.4375])
    """
    tensors = {"q": q, "k": k, "v": v, "beta": beta, "initial_states": initial_states}
    options = {"qk_l2norm": qk_l2norm, "beta_sigmoid": beta_sigmoid, "return_final_states": return_final_states}
    form = partial(gated.chunkwise_recurrence, whole_number("delta_rule_chunked", "chunk", chunk, 1, ArgumentError))
    return gated.run_delta_rule(form, DELTA_RULE, cu_seqlens, tensors, options, scale)


@overload
def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, qk_l2norm: bool = False, beta_sigmoid: bool = False, cu_seqlens: Tensor,
    scale: float | None = None, initial_states: Tensor | None = None, return_final_states: Literal[False] = False,
) -> Tensor: ...  # fmt: skip
@overload
def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, qk_l2norm: bool = False, beta_sigmoid: bool = False, cu_seqlens: Tensor,
    scale: float | None = None, initial_states: Tensor | None = None, return_final_states: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, qk_l2norm: bool = False, beta_sigmoid: bool = False, cu_seqlens: Tensor,
    scale: float | None = None, initial_states: Tensor | None = None, return_final_states: bool,
) -> Result: ...  # fmt: skip
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
    tensors = {
        "q": q,
        "k": k,
        "v": v,
        "g": g,
        "beta": beta,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "initial_states": initial_states,
    }
    options = {"qk_l2norm": qk_l2norm, "beta_sigmoid": beta_sigmoid, "return_final_states": return_final_states}
    return gated.run_delta_rule(gated.delta_recurrence, GATED_DELTA_RULE, cu_seqlens, tensors, options, scale)


@checked_call
def gated_delta_rule_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    chunk: int = 64,
    qk_l2norm: bool = False,
    beta_sigmoid: bool = False,
    cu_seqlens: Tensor,
    scale: float | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result:
    """`gated_delta_rule`, same arguments and results, in chunks.

    chunk: tokens in a chunk. The first chunk starts with the sequence; the last one may be shorter.

    >>> import torch
    >>> from packproof.refs import gated_delta_rule_chunked
    >>> k, v, beta = torch.full((5, 1, 4), 0.5), torch.ones(5, 1, 2), torch.full((5, 1), 0.5)
    >>> g = -torch.ones(5, 1)
    >>> gated_delta_rule_chunked(k, k, v, g, beta, cu_seqlens=torch.tensor([0, 2, 5]), chunk=2)[:, 0, 0]
    tensor([0.2500, 0.2960, 0.2500, 0.2960, 0.3044])
    """
    tensors = {
        "q": q,
        "k": k,
        "v": v,
        "g": g,
        "beta": beta,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "initial_states": initial_states,
    }
    options = {"qk_l2norm": qk_l2norm, "beta_sigmoid": beta_sigmoid, "return_final_states": return_final_states}
    form = partial(
        gated.chunkwise_recurrence, whole_number("gated_delta_rule_chunked", "chunk", chunk, 1, ArgumentError)
    )
    return gated.run_delta_rule(form, GATED_DELTA_RULE, cu_seqlens, tensors, options, scale)


@overload
def kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, qk_l2norm: bool = False, beta_sigmoid: bool = False, cu_seqlens: Tensor,
    scale: float | None = None, initial_states: Tensor | None = None, return_final_states: Literal[False] = False,
) -> Tensor: ...  # fmt: skip
@overload
def kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, qk_l2norm: bool = False, beta_sigmoid: bool = False, cu_seqlens: Tensor,
    scale: float | None = None, initial_states: Tensor | None = None, return_final_states: Literal[True],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
    dt_bias: Tensor | None = None, *, qk_l2norm: bool = False, beta_sigmoid: bool = False, cu_seqlens: Tensor,
    scale: float | None = None, initial_states: Tensor | None = None, return_final_states: bool,
) -> Result: ...  # fmt: skip
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
    tensors = {
        "q": q,
        "k": k,
        "v": v,
        "g": g,
        "beta": beta,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "initial_states": initial_states,
    }
    options = {"qk_l2norm": qk_l2norm, "beta_sigmoid": beta_sigmoid, "return_final_states": return_final_states}
    return gated.run_delta_rule(gated.delta_recurrence, KDA, cu_seqlens, tensors, options, scale)


@checked_call
def kda_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    chunk: int = 64,
    qk_l2norm: bool = False,
    beta_sigmoid: bool = False,
    cu_seqlens: Tensor,
    scale: float | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result:
    """`kda`, same arguments and results, in chunks.

    chunk: tokens in a chunk. The first chunk starts with the sequence; the last one may be shorter.

    >>> import torch
    >>> from packproof.refs import kda_chunked
    >>> k, v, beta = torch.full((5, 1, 4), 0.5), torch.ones(5, 1, 2), torch.full((5, 1), 0.5)
    >>> g = -torch.ones(5, 1, 4)
    >>> kda_chunked(k, k, v, g, beta, cu_seqlens=torch.tensor([0, 2, 5]), chunk=2)[:, 0, 0]
    tensor([0.2500, 0.2960, 0.2500, 0.2960, 0.3044])
    """
    tensors = {
        "q": q,
        "k": k,
        "v": v,
        "g": g,
        "beta": beta,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "initial_states": initial_states,
    }
    options = {"qk_l2norm": qk_l2norm, "beta_sigmoid": beta_sigmoid, "return_final_states": return_final_states}
    form = partial(gated.chunkwise_recurrence, whole_number("kda_chunked", "chunk", chunk, 1, ArgumentError))
    return gated.run_delta_rule(form, KDA, cu_seqlens, tensors, options, scale)
