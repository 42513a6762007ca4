"""Linear attention and its two decaying forms, with a state in place of a softmax, each in three equal forms.

`linear_attention` (Katharopoulos et al. 2020, eq. 16 to 20, without a normaliser) forgets nothing; `simple_gla` (Yang
et al. 2024, Gated Linear Attention, with one gate per head) forgets by a gate of each token, `retention` (Sun et al.
2023, RetNet, eq. 3) and lightning attention by a constant of each head. `*_step` advances one token; `*_chunked` is
masked attention inside chunks and a recurrence between them; a chunk as long as a sequence is the quadratic form.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from packproof.base.arguments import check_step, finite_scale
from packproof.base.errors import checked_call, copy_signature_of, typed_as
from packproof.base.signatures import (
    LINEAR_ATTENTION,
    LINEAR_ATTENTION_STEP,
    RETENTION,
    RETENTION_STEP,
    SIMPLE_GLA,
    SIMPLE_GLA_STEP,
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
from packproof.refs.recurrence import checked_arguments, over_time

if TYPE_CHECKING:
    from packproof.refs import overloads


def _step(S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The state after one more token, and y before its scale; g is (h, 1)."""
    S = torch.exp(g)[..., None] * S + outer(k, v)
    return S, read_state(S, q)


@checked_call
def linear_attention_step(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Advance one token: S = S + k vᵀ, y = scale Sᵀ q. The state S is (h, k, p), q and k are (h, k), v is (h, p).

    scale: k ** -0.5 if left out.

    Returns the new S, and y (h, p). Raises ArgumentError.

    >>> import torch
    >>> from packproof.refs import linear_attention_step
    >>> S, y = linear_attention_step(torch.zeros(2, 4, 3), *torch.ones(2, 2, 4), torch.ones(2, 3))
    >>> S.shape, y[0]
    (torch.Size([2, 4, 3]), tensor([2., 2., 2.]))
    """
    check_step("linear_attention_step", LINEAR_ATTENTION_STEP, S=S, q=q, k=k, v=v)
    S = S + outer(k, v)
    return S, finite_scale("linear_attention_step", scale, q.shape[-1]) * read_state(S, q)


@checked_call
def simple_gla_step(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Advance one token: S = exp(g) S + k vᵀ, y = scale Sᵀ q, with g (h,); all else as in `linear_attention_step`.

    >>> import torch
    >>> from packproof.refs import simple_gla_step
    >>> S, y = simple_gla_step(torch.ones(1, 4, 3), *torch.ones(2, 1, 4), torch.ones(1, 3), torch.tensor([-1.0]))
    >>> y
    tensor([[2.7358, 2.7358, 2.7358]])
    """
    check_step("simple_gla_step", SIMPLE_GLA_STEP, S=S, q=q, k=k, v=v, g=g)
    S, y = _step(S, v, q, k, g[:, None])
    return S, finite_scale("simple_gla_step", scale, q.shape[-1]) * y


@checked_call
def retention_step(
    S: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Advance one token: S = exp(decay) S + k vᵀ, y = scale Sᵀ q, with decay (h,), the logarithm of RetNet's γ.

    All else as in `linear_attention_step`.

    >>> import torch
    >>> from packproof.refs import retention_step
    >>> S, y = retention_step(torch.ones(1, 4, 3), *torch.ones(2, 1, 4), torch.ones(1, 3), torch.tensor([-1.0]))
    >>> y
    tensor([[2.7358, 2.7358, 2.7358]])
    """
    check_step("retention_step", RETENTION_STEP, S=S, q=q, k=k, v=v, decay=decay)
    S, y = _step(S, v, q, k, decay[:, None])
    return S, finite_scale("retention_step", scale, q.shape[-1]) * y


@typed_as(lambda: overloads.linear_attention)
@checked_call
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    scale: float | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result:
    """Linear attention of packed sequences, token by token: S = S + k vᵀ, y = scale Sᵀ q.

    q, k: (t, hk, k), in v's dtype.
    v: (t, hv, p). Value head j reads key head j // (hv / hk).
    cu_seqlens: int32 or int64 (s + 1,). Tokens past its end are slack: their output and gradients are zero.
    scale: k ** -0.5 if left out.
    initial_states: (s, hv, k, p) in fp32, or fp64 with fp64 tokens.

    Returns y (t, hv, p) in v's dtype and, with return_final_states, the states (s, hv, k, p). An empty sequence returns
    its initial state. bf16 and fp16 compute in fp32. Raises ArgumentError or LayoutError.

    >>> import torch
    >>> from packproof.refs import linear_attention
    >>> q, v = torch.ones(5, 1, 4), torch.ones(5, 1, 2)
    >>> y, states = linear_attention(q, q, v, cu_seqlens=torch.tensor([0, 2, 5]), return_final_states=True)
    >>> y[:, 0, 0]  # the second sequence starts from nothing
    tensor([2., 4., 2., 4., 6.])
    >>> states.shape
    torch.Size([2, 1, 4, 2])
    """
    return _run(linear_recurrence, LINEAR_ATTENTION, **locals())


@typed_as(lambda: overloads.linear_attention_chunked)
@copy_signature_of(linear_attention, chunk=64)
def linear_attention_chunked(chunk: int, **arguments: Any) -> Result:
    """`linear_attention`, same arguments and results, in chunks.

    chunk: tokens in a chunk. The first chunk starts with the sequence; the last one may be shorter.

    >>> import torch
    >>> from packproof.refs import linear_attention_chunked
    >>> q, v = torch.ones(5, 1, 4), torch.ones(5, 1, 2)
    >>> linear_attention_chunked(q, q, v, cu_seqlens=torch.tensor([0, 2, 5]), chunk=2)[:, 0, 0]
    tensor([2., 4., 2., 4., 6.])
    """
    return _run(chunked_form("linear_attention_chunked", chunk), LINEAR_ATTENTION, **arguments)


@typed_as(lambda: overloads.simple_gla)
@checked_call
def simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    *,
    cu_seqlens: Tensor,
    scale: float | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result:
    """Linear attention with a gate per token and head, token by token: S = exp(g) S + k vᵀ, y = scale Sᵀ q.

    g: (t, hv), natural logarithms, from -inf to 0; in the dtype of the tokens, or fp32 beside bf16 or fp16.

    All else is as in `linear_attention`.

    >>> import torch
    >>> from packproof.refs import simple_gla
    >>> q, v, g = torch.ones(5, 1, 4), torch.ones(5, 1, 2), -torch.ones(5, 1)
    >>> simple_gla(q, q, v, g, cu_seqlens=torch.tensor([0, 2, 5]))[:, 0, 0]
    tensor([2.0000, 2.7358, 2.0000, 2.7358, 3.0064])
    """
    return _run(linear_recurrence, SIMPLE_GLA, **locals())


@typed_as(lambda: overloads.simple_gla_chunked)
@copy_signature_of(simple_gla, chunk=64)
def simple_gla_chunked(chunk: int, **arguments: Any) -> Result:
    """`simple_gla`, same arguments and results, in chunks as in `linear_attention_chunked`.

    >>> import torch
    >>> from packproof.refs import simple_gla_chunked
    >>> q, v, g = torch.ones(5, 1, 4), torch.ones(5, 1, 2), -torch.ones(5, 1)
    >>> simple_gla_chunked(q, q, v, g, cu_seqlens=torch.tensor([0, 2, 5]), chunk=2)[:, 0, 0]
    tensor([2.0000, 2.7358, 2.0000, 2.7358, 3.0064])
    """
    return _run(chunked_form("simple_gla_chunked", chunk), SIMPLE_GLA, **arguments)


@typed_as(lambda: overloads.retention)
@checked_call
def retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    *,
    cu_seqlens: Tensor,
    scale: float | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result:
    """Linear attention with a constant decay per head, token by token: S = exp(decay) S + k vᵀ, y = scale Sᵀ q.

    decay: (hv,), the natural logarithm of RetNet's γ, from -inf to 0, in fp32, or fp64 with fp64 tokens.

    All else is as in `linear_attention`.

    >>> import torch
    >>> from packproof.refs import retention
    >>> q, v = torch.ones(5, 1, 4), torch.ones(5, 1, 2)
    >>> retention(q, q, v, -torch.ones(1), cu_seqlens=torch.tensor([0, 2, 5]))[:, 0, 0]
    tensor([2.0000, 2.7358, 2.0000, 2.7358, 3.0064])
    """
    return _run(linear_recurrence, RETENTION, **locals())


@typed_as(lambda: overloads.retention_chunked)
@copy_signature_of(retention, chunk=64)
def retention_chunked(chunk: int, **arguments: Any) -> Result:
    """`retention`, same arguments and results, in chunks as in `linear_attention_chunked`.

    >>> import torch
    >>> from packproof.refs import retention_chunked
    >>> q, v = torch.ones(5, 1, 4), torch.ones(5, 1, 2)
    >>> retention_chunked(q, q, v, -torch.ones(1), cu_seqlens=torch.tensor([0, 2, 5]), chunk=2)[:, 0, 0]
    tensor([2.0000, 2.7358, 2.0000, 2.7358, 3.0064])
    """
    return _run(chunked_form("retention_chunked", chunk), RETENTION, **arguments)


def _run(form: GatedRecurrence, signature: Signature, **arguments: Any) -> Result:
    """One of the three ops in one of its forms."""
    checked_arguments(signature, arguments)
    q, k, v = (arguments[name] for name in ("q", "k", "v"))
    return run_over_pack(
        form,
        *(q, k, v, _log_decay(v, arguments.get("g"), arguments.get("decay"))),
        scale=finite_scale(signature.op, arguments["scale"], k.shape[-1]),
        cu_seqlens=arguments["cu_seqlens"],
        initial_states=arguments["initial_states"],
        return_final_states=arguments["return_final_states"],
    )


def _log_decay(v: Tensor, g: Tensor | None, decay: Tensor | None) -> Tensor:
    """The logarithm of the decay of each token and head (t, h, 1)."""
    if decay is not None:
        return decay[:, None].expand(len(v), -1, -1)
    return no_decay(v) if g is None else g[..., None]


def linear_recurrence(S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Linear attention of one sequence, token by token."""
    return over_time(_step, S, v, q, k, g)
