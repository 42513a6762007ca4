"""Products of the rows of a pack with a matrix for each group of them: a mixture of experts packs tokens by expert."""

from torch import Tensor

from packproof.base.errors import checked_call
from packproof.base.signatures import GROUPED_MM
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
    rows = split_sequences(to_compute_dtype(checked["x"]), cu_seqlens)
    products = [x_j @ W_j for x_j, W_j in zip(rows, to_compute_dtype(weight), strict=True)]
    if bias is not None:
        products = [y_j + b_j for y_j, b_j in zip(products, to_compute_dtype(bias), strict=True)]
    return join_sequences(products, to_compute_dtype(x).new_zeros(len(x), weight.shape[2])).to(x.dtype)
