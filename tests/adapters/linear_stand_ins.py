"""Linear attention and delta rules with the calling conventions of fla and transformers, computed by the references."""

from typing import Any

import torch
from torch import Tensor

from packproof import refs


def _as_theirs(found: Any, asked: bool) -> tuple[Tensor, Tensor | None]:
    y, states = found
    return y[None], states if asked else None


def linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    normalize: bool = True,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """fla. q, k: (1, t, h, k), v: (1, t, h, p), states: (s, h, k, p)."""
    assert cu_seqlens is not None
    assert not normalize
    options: dict[str, Any] = {"cu_seqlens": cu_seqlens, "scale": scale, "initial_states": initial_state}
    return _as_theirs(refs.linear_attention(q[0], k[0], v[0], return_final_states=True, **options), output_final_state)


def simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """fla. g: (1, t, h). g_gamma: (h,), for all tokens."""
    assert cu_seqlens is not None
    assert not kwargs
    assert (g is None) != (g_gamma is None)
    tokens = [x[0] for x in (q, k, v)]
    options: dict[str, Any] = {"cu_seqlens": cu_seqlens, "scale": scale, "initial_states": initial_state}
    options["return_final_states"] = True
    if g is not None:
        return _as_theirs(refs.simple_gla(*tokens, g[0], **options), output_final_state)
    assert g_gamma is not None
    return _as_theirs(refs.retention(*tokens, g_gamma, **options), output_final_state)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """fla. beta: (1, t, h)."""
    assert cu_seqlens is not None
    options: dict[str, Any] = {"cu_seqlens": cu_seqlens, "scale": scale, "initial_states": initial_state}
    options |= {"qk_l2norm": use_qk_l2norm_in_kernel, "return_final_states": True}
    return _as_theirs(refs.delta_rule(*(x[0] for x in (q, k, v, beta)), **options), output_final_state)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """fla. g: (1, t, h), or (1, t, h, k) in KDA, whose dt_bias is (h k,). A_log and dt_bias make the gate if asked."""
    assert cu_seqlens is not None
    A_log, dt_bias = kwargs.get("A_log"), kwargs.get("dt_bias")
    assert use_gate_in_kernel == (A_log is not None)
    assert use_gate_in_kernel or dt_bias is None
    rule, bias = (refs.gated_delta_rule, dt_bias) if g.ndim == 3 else (refs.kda, dt_bias)
    if g.ndim == 4 and bias is not None:
        bias = bias.view(g.shape[2:])
    options: dict[str, Any] = {"cu_seqlens": cu_seqlens, "scale": scale, "initial_states": initial_state}
    options |= {"qk_l2norm": use_qk_l2norm_in_kernel, "beta_sigmoid": use_beta_sigmoid_in_kernel}
    found = rule(*(x[0] for x in (q, k, v, g, beta)), A_log, bias, return_final_states=True, **options)
    return _as_theirs(found, output_final_state)


def torch_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """transformers: a batch of sequences of one length, here of one sequence, without boundaries."""
    assert not kwargs
    assert len(query) == 1
    options: dict[str, Any] = {"initial_states": initial_state, "qk_l2norm": use_qk_l2norm_in_kernel}
    options["cu_seqlens"] = torch.tensor([0, query.shape[1]])
    tokens = (x[0] for x in (query, key, value, g, beta))
    return _as_theirs(refs.gated_delta_rule(*tokens, return_final_states=True, **options), output_final_state)
