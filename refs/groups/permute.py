"""Tokens sent to experts and back: dispatch and combine (GShard, Lepikhin et al. 2020, algorithm 1).

Each pair of a token and one of its experts is a row. Rows lie by expert, then by token.
"""

import torch
from torch import Tensor

from packproof.base.arguments import check_offsets, check_offsets_form, whole_number
from packproof.base.errors import ArgumentError, checked_call
from packproof.base.signatures import DISPATCH_COMBINE
from packproof.base.wording import kind
from packproof.refs.groups.experts import choose_experts
from packproof.refs.recurrence import check_rows, checked_arguments, split_sequences, to_compute_dtype


@checked_call
def moe_permute(
    x: Tensor, experts: Tensor, *, n_experts: int, cu_seqlens: Tensor, capacity: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of each expert, one after another.

    x: (t, d), floats.
    experts: int32 or int64 (t, k), the experts of each token, from 0 to n_experts - 1; or -1 for none.
    cu_seqlens: int32 or int64 (s + 1,). Rows past the last sequence are not sent.
    capacity: the pairs that an expert takes of one sequence, the first ones by token, then by choice; None: all.
        Others are dropped. A capacity of the pack would make a sequence depend on the others.

    Returns the rows (r, d), the pair of each row (r,), token * k + choice, and the offsets of the experts
    (n_experts + 1,), both int64. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import moe_permute
    >>> x, experts = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[1], [0], [1]])
    >>> rows, pairs, offsets = moe_permute(x, experts, n_experts=2, cu_seqlens=torch.tensor([0, 3]))
    >>> rows.flatten(), pairs, offsets
    (tensor([2., 1., 3.]), tensor([1, 0, 2]), tensor([0, 1, 3]))
    """
    _check_experts(x, experts, n_experts)
    check_offsets_form("moe_permute", cu_seqlens)
    check_offsets("moe_permute", cu_seqlens, len(x), "x has")
    limit = None if capacity is None else whole_number("moe_permute", "capacity", capacity, 0, ArgumentError)
    first_pairs = (cu_seqlens[:-1].long() * experts.shape[1]).tolist()
    by_sequence = [choices.flatten() for choices in split_sequences(experts, cu_seqlens)]
    by_expert = [
        torch.cat(
            [
                experts.new_zeros(0, dtype=torch.long),
                *(start + (c == i).nonzero()[:limit, 0] for start, c in zip(first_pairs, by_sequence, strict=True)),
            ]
        )
        for i in range(n_experts)
    ]
    pairs = torch.cat(by_expert)
    offsets = torch.tensor([0, *map(len, by_expert)], device=x.device).cumsum(0)
    return x[pairs // experts.shape[1]], pairs, offsets


@checked_call
def moe_unpermute(rows: Tensor, pairs: Tensor, weights: Tensor) -> Tensor:
    """y_t = Σ_i w_ti rows[r] over the rows r of token t's pairs; a dropped pair adds nothing.

    rows: (r, d) in fp64, fp32, bf16 or fp16 (the last two compute in fp32).
    pairs: int64 (r,), the pair of each row, from `moe_permute`.
    weights: (t, k), floats.

    Returns (t, d) in the dtype of rows. Raises ArgumentError.

    >>> import torch
    >>> from packproof.refs import moe_unpermute
    >>> moe_unpermute(torch.tensor([[2.0], [1.0]]), torch.tensor([1, 2]), torch.tensor([[1.0, 0.5], [10.0, 0.0]]))
    tensor([[ 1.],
            [10.]])
    """
    for name, x in (("rows", rows), ("pairs", pairs), ("weights", weights)):
        check_rows("moe_unpermute", name, x)
    if pairs.shape != rows.shape[:1] or weights.ndim != 2:
        shapes = f"rows is {tuple(rows.shape)}, pairs {tuple(pairs.shape)} and weights {tuple(weights.shape)}"
        raise ArgumentError(f"moe_unpermute: {shapes} but (r, d), (r,) and (t, k) were expected")
    if len(pairs) and not 0 <= int(pairs.min()) <= int(pairs.max()) < weights.numel():
        raise ArgumentError(
            f"moe_unpermute: pairs has {int(pairs.min())} to {int(pairs.max())} but 0 to {weights.numel() - 1} was "
            "expected, token * k + choice"
        )
    wide = to_compute_dtype(rows)
    parts = weights.to(wide.dtype).flatten()[pairs, None] * wide
    y = wide.new_zeros(len(weights), rows.shape[1])
    return y.index_add(0, pairs // weights.shape[1], parts).to(rows.dtype)


@checked_call
def dispatch_combine(
    x: Tensor,
    logits: Tensor,
    gain: Tensor,
    *,
    cu_seqlens: Tensor,
    top: int = 2,
    normalize: bool = False,
    capacity: int | None = None,
) -> Tensor:
    """y_t = Σ_i p_i (x_t ⊙ g_i) over the `top` experts i of token t that take it: a mixture of scalings.

    It is `moe_permute`, a product of each expert's rows with its gain, and `moe_unpermute`. A kernel of the two is held
    to it with the product between them.

    x: (t, d) in fp64, fp32, bf16 or fp16 (the last two compute in fp32).
    logits: (t, e), of the router, in x's dtype or fp32. If the last one chosen equals the first that is not, either is
    right.
    gain: (e, d) in x's dtype.
    cu_seqlens: int32 or int64 (s + 1,).
    top: the experts of a token, at most e.
    normalize: divide p, the softmax of the logits, by its sum over the chosen experts, dropped ones too.
    capacity: as in `moe_permute`.

    Returns (t, d) in x's dtype, zero in slack. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import dispatch_combine
    >>> x, logits, gain = torch.ones(2, 1), torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([[3.0], [5.0]])
    >>> call = {"cu_seqlens": torch.tensor([0, 2]), "top": 1, "normalize": True}
    >>> dispatch_combine(x, logits, gain, **call).flatten()
    tensor([3., 3.])
    >>> dispatch_combine(x, logits, gain, capacity=1, **call).flatten()
    tensor([3., 0.])
    """
    checked = checked_arguments(DISPATCH_COMBINE, locals())
    tokens, n = to_compute_dtype(x), int(cu_seqlens[-1])
    experts, weights = choose_experts(DISPATCH_COMBINE.op, checked["logits"][:n], top, normalize, tokens.dtype)
    rows, pairs, offsets = moe_permute(
        tokens[:n], experts, n_experts=len(gain), cu_seqlens=cu_seqlens, capacity=capacity
    )
    expert_of_row = torch.arange(len(gain), device=x.device).repeat_interleave(offsets.diff())
    y: Tensor = moe_unpermute(rows * to_compute_dtype(gain)[expert_of_row], pairs, weights)
    return torch.cat([y, tokens.new_zeros(len(x) - n, x.shape[1])]).to(x.dtype)


def _check_experts(x: Tensor, experts: Tensor, n_experts: int) -> None:
    check_rows("moe_permute", "x", x)
    n_experts = whole_number("moe_permute", "n_experts", n_experts, 0, ArgumentError)
    if not isinstance(experts, Tensor) or experts.dtype not in (torch.int32, torch.int64) or experts.ndim != 2:
        actual = f"{experts.dtype} {tuple(experts.shape)}" if isinstance(experts, Tensor) else kind(experts)
        raise ArgumentError(f"moe_permute: experts is {actual} but int32 or int64 (t, k) was expected")
    if len(experts) != len(x):
        raise ArgumentError(f"moe_permute: experts has {len(experts)} rows but x has {len(x)}")
    if experts.numel() and not -1 <= int(experts.min()) <= int(experts.max()) < n_experts:
        raise ArgumentError(
            f"moe_permute: experts has {int(experts.min())} to {int(experts.max())} but 0 to {n_experts - 1} was "
            "expected, or -1 for none"
        )
