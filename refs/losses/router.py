"""Losses of routers over packed tokens: the balance of experts, and the z-loss.

With the scores s of a token, the softmax of its logits or, with `scores="sigmoid"`, their sigmoids divided by their sum
(DeepSeek-AI 2024, DeepSeek-V3, equations 15 and 19), E experts and K choices of a token:

    load of expert i      f_i = tokens that choose i / (K tokens)          Fedus et al. 2022 (Switch), equation 5
    probability           P_i = the mean of s_i over the tokens            equation 6
    balance loss          E Σ f_i P_i                                      equation 4, without its factor α
    z-loss                the mean of lse(logits)²                         Zoph et al. 2022 (ST-MoE), equation 5

Of a pack there are two balance losses. That of each sequence takes f and P of its own tokens (DeepSeek-V3, equations 17
to 20). That of the whole pack takes both of all tokens: a product of two means over the pack follows from no values of
its sequences. But f has no gradient, and the loss is linear in P. So `router_balance_loss_pack` takes f as an input, of
this pack or of a global batch, and is a mean over tokens, and `router_load` counts what f is made of, a sum.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from packproof.base import signatures
from packproof.base.arguments import whole_number
from packproof.base.errors import ArgumentError, checked_call
from packproof.base.signatures import Signature
from packproof.refs.losses.checks import tokens_in_mask
from packproof.refs.recurrence import checked_arguments, sequence_slices, to_compute_dtype


@checked_call
def router_load(logits: Tensor, mask: Tensor | None = None, *, cu_seqlens: Tensor, top: int = 2) -> Tensor:
    """How many tokens of the pack choose each expert. It has no gradient.

    logits: (t, e) in fp64, fp32, bf16 or fp16.
    mask: int32 or int64 (t,), 1 for a counted token, 0 for any other. None: all tokens count.
    cu_seqlens: int32 or int64 (s + 1,).
    top: K, the choices of a token.

    Returns (e,), in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import router_load
    >>> logits = torch.tensor([[3.0, 2.0, 1.0], [1.0, 3.0, 2.0]])
    >>> router_load(logits, cu_seqlens=torch.tensor([0, 2]))
    tensor([1., 2., 1.])
    """
    x = _counted_rows(signatures.ROUTER_LOAD, checked_arguments(signatures.ROUTER_LOAD, locals()))
    return _choices(signatures.ROUTER_LOAD, x, top).sum(0)


@checked_call
def router_balance_loss_pack(
    logits: Tensor, load: Tensor, mask: Tensor | None = None, *, cu_seqlens: Tensor, scores: str = "softmax"
) -> Tensor:
    """The balance loss of the whole pack, E Σ f_i P_i, with P of all tokens of the pack that count; 0 without one.

    load: (e,), f, in the dtype of logits or fp32: `router_load` / (K tokens), of this pack or of a global batch.

    The other arguments are as in `router_load`. Returns (), in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import router_balance_loss_pack
    >>> load = torch.tensor([0.5, 0.25, 0.25])
    >>> router_balance_loss_pack(torch.zeros(4, 3), load, cu_seqlens=torch.tensor([0, 1, 4]))  # 1 is balance
    tensor(1.)
    """
    checked = checked_arguments(signatures.ROUTER_BALANCE_LOSS_PACK, locals())
    x = _counted_rows(signatures.ROUTER_BALANCE_LOSS_PACK, checked)
    return x.shape[1] * (_probabilities(x, scores) @ load.to(x.dtype)).sum() / max(len(x), 1)


@checked_call
def router_balance_loss_sequences(
    logits: Tensor, mask: Tensor | None = None, *, cu_seqlens: Tensor, top: int = 2, scores: str = "softmax"
) -> Tensor:
    """The balance loss of each sequence, E Σ f_i P_i with f and P of its own counted tokens; 0 without one.

    Its arguments are as in `router_load`. Returns (s,), in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import router_balance_loss_sequences
    >>> logits = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    >>> router_balance_loss_sequences(logits, cu_seqlens=torch.tensor([0, 1, 3]), top=1)
    tensor([1.9998, 1.0000])
    """
    signature = signatures.ROUTER_BALANCE_LOSS_SEQUENCES
    checked = checked_arguments(signature, locals())
    losses = []
    for rows in sequence_slices(cu_seqlens):
        x = _counted_rows(signature, checked, rows)
        load = _choices(signature, x, top).sum(0) / max(top * len(x), 1)
        losses.append(x.shape[1] * (load * _probabilities(x, scores).sum(0) / max(len(x), 1)).sum())
    return torch.stack(losses) if losses else to_compute_dtype(logits)[:0].sum(-1)


@checked_call
def router_z_loss(logits: Tensor, mask: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    """The mean of lse(logits)² over the counted tokens of the pack; 0 without one.

    Its arguments are as in `router_load`. Returns (), in fp32 or fp64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import router_z_loss
    >>> router_z_loss(torch.zeros(4, 3), cu_seqlens=torch.tensor([0, 1, 4]))  # (log 3)²
    tensor(1.2069)
    """
    x = _counted_rows(signatures.ROUTER_Z_LOSS, checked_arguments(signatures.ROUTER_Z_LOSS, locals()))
    return x.logsumexp(-1).square().sum() / max(len(x), 1)


def _counted_rows(signature: Signature, checked: Mapping[str, Any], rows: slice | None = None) -> Tensor:
    """The logits of counted tokens, of the pack or of some rows, in the dtype of the computation."""
    n, mask = int(checked["cu_seqlens"][-1]), checked["mask"]
    rows = slice(0, n) if rows is None else rows
    x = to_compute_dtype(checked["logits"][rows])
    return x if mask is None else x[tokens_in_mask(signature, mask, n)[rows]]


def _choices(signature: Signature, x: Tensor, top: int) -> Tensor:
    """1 for each expert that a token chooses, 0 for the others (t, e). Raises ArgumentError for more than there are."""
    if whole_number(signature.op, "top", top, 1, ArgumentError) > x.shape[1]:
        raise ArgumentError(f"{signature.op}: top is {top} but logits has {x.shape[1]} experts (axis e)")
    return torch.zeros_like(x).scatter(-1, x.detach().topk(top, -1).indices, 1.0)


def _probabilities(x: Tensor, scores: str) -> Tensor:
    if scores == "softmax":
        return x.softmax(-1)
    s = x.sigmoid()
    return s / s.sum(-1, keepdim=True)
