"""A mixture of experts by permuted rows: 3 correct, 7 with bugs of routing, permuting and combining.

Each pair of a token and one of its experts is a row. Rows are sorted by expert, computed group by group, weighted, and
added to their tokens.
"""

import torch
from torch import Tensor
from torch.nn.functional import silu

from packproof.museum.variants import kernel_lookup

EXPERTS = 4  # of a block, where experts are counted in blocks


def _weights(p: Tensor, top: int, *, normalize: bool, bug: str) -> tuple[Tensor, Tensor]:
    """The experts of each token (t, top), and their weights."""
    experts = p.detach().topk(top, -1).indices
    weights = p.gather(-1, experts)
    if normalize and bug == "normalized_over_tokens_for_one" and top == 1:
        weights = weights / weights.sum()  # of one axis: that of the tokens
    elif normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    if bug == "weight_of_the_first_choice":
        weights = weights[:, :1].expand_as(weights)
    return experts, weights


def _groups(experts: Tensor, n_experts: int, bug: str) -> list[tuple[int, Tensor]]:
    """The rows of each expert, as indices into the flat pairs."""
    flat = experts.flatten()
    numbers = list(range(n_experts))
    if bug == "experts_wrapped_around":  # the last block is filled with the first experts
        numbers += [i % n_experts for i in range(n_experts, -(-n_experts // EXPERTS) * EXPERTS)]
    groups = [(i, (flat == i).nonzero()[:, 0]) for i in numbers]
    limits = {"first_row_of_each_expert": 1, "capacity_of_the_pack": max(1, -(-len(flat) // n_experts))}
    return [(i, rows[: limits.get(bug)]) for i, rows in groups]


def _expert(rows: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return (silu(rows @ gate) * (rows @ up)) @ down


def mixture_of_experts(
    x: Tensor,
    logits: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    *,
    cu_seqlens: Tensor,
    top: int = 2,
    normalize: bool = False,
    bug: str = "",
    form: str = "permuted",
) -> Tensor:
    """Op `mixture_of_experts` in fp32 (fp64 for fp64), with the named bug."""
    wide = torch.promote_types(x.dtype, torch.float32)
    end = len(x) if bug == "slack_takes_part" else int(cu_seqlens[-1])
    rows, p = x[:end].to(wide), logits[:end].to(wide).softmax(-1)
    experts, weights = _weights(p, top, normalize=normalize, bug=bug)
    matrices = [w.to(wide) for w in (w_gate, w_up, w_down)]
    y = _FORMS[form](rows, experts, weights, matrices, bug)
    y = torch.cat([y, rows.new_zeros(len(x) - end, x.shape[1])])
    if bug == "slack_takes_part":
        y = torch.where(torch.arange(len(x))[:, None] < cu_seqlens[-1], y, y * 0)  # what its weights of 0 leave
    return y.to(x.dtype)


def _permuted(x: Tensor, experts: Tensor, weights: Tensor, matrices: list[Tensor], bug: str) -> Tensor:
    y, flat_weights, top = torch.zeros_like(x), weights.flatten(), experts.shape[1]
    for i, pairs in _groups(experts, len(matrices[0]), bug):
        token = pairs // top
        rows = _expert(x[token], *(w[i] for w in matrices))
        part = rows * flat_weights[pairs, None]
        if bug == "one_choice_twice" and top == 1:
            part = 2 * part
        y = y.index_add(0, token, part)
    return y


def _dense(x: Tensor, experts: Tensor, weights: Tensor, matrices: list[Tensor], _bug: str) -> Tensor:
    """Every expert on every row, weighted by 0 where it is not experts."""
    n_experts = len(matrices[0])
    share = x.new_zeros(len(x), n_experts).scatter_add(-1, experts, weights)
    outputs = [_expert(x, *(w[i] for w in matrices)) for i in range(n_experts)]
    return sum((share[:, i, None] * y for i, y in enumerate(outputs)), torch.zeros_like(x))


def _gathered(x: Tensor, experts: Tensor, weights: Tensor, matrices: list[Tensor], _bug: str) -> Tensor:
    """Each token with copies of its experts' matrices, as a server may decode few tokens."""
    gate, up, down = (w[experts] for w in matrices)  # (t, top, ...)
    hidden = silu(torch.einsum("td, tkdf -> tkf", x, gate)) * torch.einsum("td, tkdf -> tkf", x, up)
    return torch.einsum("tk, tkf, tkfd -> td", weights, hidden, down)


_FORMS = {"permuted": _permuted, "dense": _dense, "gathered": _gathered}

__getattr__ = kernel_lookup(
    mixture_of_experts,
    {"correct": {}, "dense": {"form": "dense"}, "gathered": {"form": "gathered"}},
    (
        *("one_choice_twice", "normalized_over_tokens_for_one", "weight_of_the_first_choice", "experts_wrapped_around"),
        *("first_row_of_each_expert", "slack_takes_part", "capacity_of_the_pack"),
    ),
)
