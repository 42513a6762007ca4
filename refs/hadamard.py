"""Incoherent processing: channels mixed by a random orthogonal matrix (FlashAttention-3, Shah et al. 2024, 3.3).

The matrix M = diag(signs) H / √k is orthogonal. Transformed queries and keys keep their scores: (q M) · (k M) = q · k.
An outlier in one channel is spread over all channels, so that rounding to few bits loses less (docs/ops.md).
"""

import torch
from torch import Tensor

from packproof.base.arguments import bind, check_options, whole_number
from packproof.base.errors import ArgumentError, checked_call
from packproof.base.signatures import HADAMARD, ROPE_HADAMARD
from packproof.refs.recurrence import join_sequences, split_sequences, to_compute_dtype
from packproof.refs.rotary import rope
from packproof.refs.rotary_options import check_power_of_two, check_rotary_tables


def sylvester(k: int) -> Tensor:
    """Hadamard's matrix of order k, a power of two, in fp64, by Sylvester: H(2k) = [[H(k), H(k)], [H(k), -H(k)]]."""
    H = torch.ones(1, 1, dtype=torch.float64)
    while len(H) < k:
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)])
    return H


@checked_call
def random_signs(k: int, seed: int) -> Tensor:
    """k numbers, each 1 or -1, in fp32, from a seed: the same on every machine. Raises ArgumentError.

    >>> from packproof.refs import random_signs
    >>> random_signs(8, seed=0)
    tensor([ 1., -1., -1.,  1., -1., -1., -1., -1.])
    """
    k = whole_number("random_signs", "k", k, error=ArgumentError)
    generator = torch.Generator().manual_seed(whole_number("random_signs", "seed", seed, error=ArgumentError))
    return 1.0 - 2.0 * torch.randint(2, (k,), generator=generator)


@checked_call
def hadamard(x: Tensor, signs: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    """(x ⊙ signs) H / √k along the last axis, H being Sylvester's matrix: norms and scalar products stay.

    x: (t, h, k) in fp64, fp32, bf16 or fp16 (the last two compute in fp32), k a power of two.
    signs: (k,), each 1 or -1, in x's dtype or fp32, such as from `random_signs`. They get no gradient.
    cu_seqlens: int32 or int64 (s + 1,).

    Returns (t, h, k) in x's dtype, zero in slack. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import hadamard
    >>> x = torch.tensor([[[8.0, 0, 0, 0]], [[2, 2, 2, 2]]])
    >>> hadamard(x, cu_seqlens=torch.tensor([0, 1, 2])).flatten(1)  # an outlier is spread, and the other way round
    tensor([[4., 4., 4., 4.],
            [4., 0., 0., 0.]])
    """
    sizes = bind(HADAMARD, cu_seqlens, x=x, signs=signs, values=True)
    check_power_of_two("hadamard", "x", sizes["k"])
    tokens = to_compute_dtype(x)
    H = sylvester(sizes["k"]).to(tokens)
    factors = torch.ones_like(H[0]) if signs is None else signs.to(tokens.dtype)
    return join_sequences([(rows * factors) @ H / sizes["k"] ** 0.5 for rows in split_sequences(tokens, cu_seqlens)], x)


@checked_call
def rope_hadamard(
    x: Tensor, cos: Tensor, sin: Tensor, signs: Tensor | None = None, *, cu_seqlens: Tensor,
    offsets: Tensor | None = None, interleaved: bool = False,
) -> Tensor:  # fmt: skip
    """`hadamard` of `rope`, not rounded in between: the transform of queries and keys before quantization.

    The arguments are as in `rope` and `hadamard`: x (t, h, k) with k a power of two, cos and sin (m, r), signs (k,),
    offsets (s,).

    Returns (t, h, k) in x's dtype, zero in slack. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import rope_hadamard
    >>> x, cos, sin = torch.tensor([[[3.0, 1.0]]]), torch.zeros(1, 1), torch.ones(1, 1)  # a quarter of a circle
    >>> rope_hadamard(x, cos, sin, cu_seqlens=torch.tensor([0, 1])) * 2**0.5  # of (-1, 3)
    tensor([[[ 2.0000, -4.0000]]])
    """
    sizes = bind(ROPE_HADAMARD, cu_seqlens, x=x, cos=cos, sin=sin, signs=signs, offsets=offsets, values=True)
    check_options(ROPE_HADAMARD, interleaved=interleaved)
    check_power_of_two("rope_hadamard", "x", sizes["k"])
    check_rotary_tables("rope_hadamard", "x", sizes, cu_seqlens, offsets)
    tokens = to_compute_dtype(x)
    cos, sin = cos.to(tokens.dtype), sin.to(tokens.dtype)
    rotated = rope(tokens, cos, sin, cu_seqlens=cu_seqlens, offsets=offsets, interleaved=interleaved)
    signs = None if signs is None else signs.to(tokens.dtype)
    return hadamard(rotated, signs, cu_seqlens=cu_seqlens).to(x.dtype)
