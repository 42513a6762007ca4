"""Rotary embedding of a pack cut over ranks: positions continue within a document. Nothing is exchanged."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from packproof import kernels
from packproof.base.errors import checked_call
from packproof.parallel.cut import Cut, empty_rank_output


@checked_call
def rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    shard: Cut,
    interleaved: bool = False,
    kernel: Callable[..., Any] | None = None,
) -> Tensor:
    """`packproof.kernels.rope` of the tokens on this rank, with the values of the whole pack: (t, h, k).

    x: (t, h, k), the rank's tokens; further rows are slack.
    cos, sin: (m, r), tables for all positions of the complete documents.
    shard: a `Shard` or a `ZigZag`.
    kernel: replaces packproof's own; has the signature of `packproof.refs.rope`.

    >>> import torch
    >>> from packproof import parallel, refs
    >>> x, angle, cu_seqlens = torch.randn(5, 1, 4), torch.rand(4, 2), torch.tensor([0, 1, 5])
    >>> def program(group):
    ...     shard = parallel.Shard(cu_seqlens, group)
    ...     return parallel.rope(x[shard.rows], angle.cos(), angle.sin(), shard=shard, kernel=refs.rope)
    >>> whole = refs.rope(x, angle.cos(), angle.sin(), cu_seqlens=cu_seqlens)
    >>> torch.equal(torch.cat(parallel.run_ranks(2, program)), whole)
    True
    """
    shard.require_tokens("rope", "x", x)
    if not shard.tokens:
        return empty_rank_output(x)
    result: Tensor = (kernel or kernels.rope)(
        x, cos, sin, cu_seqlens=shard.cu_seqlens(x.device), offsets=shard.starts(x.device), interleaved=interleaved
    )
    return result
