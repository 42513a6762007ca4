"""A mixture of experts: each token is computed by the few that its router prefers (Shazeer et al. 2017).

Its products are grouped: rows lie by expert, as tokens of a pack lie by document.
"""

import torch
from torch import Tensor
from torch.nn.functional import silu

from packproof.base.arguments import whole_number
from packproof.base.errors import ArgumentError, checked_call
from packproof.base.signatures import GROUPED_MM, MIXTURE_OF_EXPERTS
from packproof.refs.recurrence import checked_arguments, join_sequences, split_sequences, to_compute_dtype


@checked_call
def grouped_mm(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    """y = x W_j + b_j for the rows of each group j, as the experts of a mixture do (MegaBlocks, Gale et al. 2022).

    Groups lie one after another as sequences of a pack do: group j has rows cu_seqlens[j] to cu_seqlens[j + 1].

    x: (t, d) in fp64, fp32, bf16 or fp16 (the last two compute in fp32).
    weight: (s, d, f), a matrix for each group, in x's dtype. A group without rows has a gradient of 0.
    bias: (s, f), in x's dtype.
    cu_seqlens: int32 or int64 (s + 1,).

    Returns (t, f) in x's dtype, zero in slack. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import grouped_mm
    >>> x, weight = torch.ones(3, 2), torch.tensor([[[1.0], [2.0]], [[10], [20]]])
    >>> grouped_mm(x, weight, cu_seqlens=torch.tensor([0, 1, 3]))[:, 0]
    tensor([ 3., 30., 30.])
    """
    checked = checked_arguments(GROUPED_MM, locals())
    tokens = to_compute_dtype(checked["x"])
    rows = split_sequences(tokens, cu_seqlens)
    products = [x_j @ W_j for x_j, W_j in zip(rows, to_compute_dtype(weight), strict=True)]
    if bias is not None:
        products = [y_j + b_j for y_j, b_j in zip(products, to_compute_dtype(bias), strict=True)]
    return join_sequences(products, tokens @ tokens.new_zeros(weight.shape[1:])).to(x.dtype)


@checked_call
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
) -> Tensor:
    """y_t = Σ_i p_i (silu(x_t Wg_i) ⊙ x_t Wu_i) Wd_i over the `top` experts i of the largest logits of token t.

    p is the softmax of the token's logits. No token's row depends on another token; an expert that no token chooses has
    gradients of 0. (Mixtral, Jiang et al. 2024, equation 2 with `normalize`; Switch, Fedus et al. 2022, without.)

    x: (t, d) in fp64, fp32, bf16 or fp16 (the last two compute in fp32).
    logits: (t, e), of the router, in x's dtype or fp32. If the last one chosen equals the first that is not, either is
    right.
    w_gate, w_up: (e, d, f) in x's dtype.
    w_down: (e, f, d) in x's dtype.
    cu_seqlens: int32 or int64 (s + 1,).
    top: the experts of a token, at most e.
    normalize: divide p by its sum over the chosen experts.

    Returns (t, d) in x's dtype, zero in slack. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import mixture_of_experts
    >>> x, logits, w = torch.ones(1, 1), torch.tensor([[0.0, 9.0]]), torch.tensor([1.0, 2.0]).view(2, 1, 1)
    >>> mixture_of_experts(x, logits, w, w, w, cu_seqlens=torch.tensor([0, 1]), top=1)  # silu(2) 2 x 2
    tensor([[7.0455]])
    """
    checked = checked_arguments(MIXTURE_OF_EXPERTS, locals())
    rows = to_compute_dtype(x)[: int(cu_seqlens[-1])]
    chosen, weights = choose_experts(MIXTURE_OF_EXPERTS.op, checked["logits"][: len(rows)], top, normalize, rows.dtype)
    Wg, Wu, Wd = (to_compute_dtype(w) for w in (w_gate, w_up, w_down))
    y = torch.zeros_like(to_compute_dtype(x))
    for i in range(logits.shape[1]):
        token, place = (chosen == i).nonzero(as_tuple=True)
        expert = (silu(rows[token] @ Wg[i]) * (rows[token] @ Wu[i])) @ Wd[i]
        y = y.index_add(0, token, weights[token, place, None] * expert)
    return y.to(x.dtype)


def choose_experts(op: str, logits: Tensor, top: int, normalize: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The `top` experts of each token (t, top), and their weights (t, top) in this dtype: the softmax of its logits.

    op: the name in messages.
    """
    if whole_number(op, "top", top, 1, ArgumentError) > logits.shape[1]:
        raise ArgumentError(f"{op}: top is {top} but logits has {logits.shape[1]} experts (axis e)")
    p = to_compute_dtype(logits).to(dtype).softmax(-1)
    chosen = p.detach().topk(top, -1).indices
    weights = p.gather(-1, chosen)
    return chosen, weights / weights.sum(-1, keepdim=True) if normalize else weights
