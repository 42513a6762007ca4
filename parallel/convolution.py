"""Causal convolution of a pack cut over ranks: the tokens before a cut, the halo, come from earlier ranks."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from packproof import kernels
from packproof.base.errors import checked_call
from packproof.parallel.cut import empty_rank_output
from packproof.parallel.exchange import all_gather
from packproof.parallel.shard import Shard, require_shard


@checked_call
def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    shard: Shard,
    activation: Literal["silu"] | None = None,
    kernel: Callable[..., Any] | None = None,
) -> Tensor:
    """`packproof.kernels.causal_conv1d` of the tokens on this rank, with the values of the whole pack: (t, d).

    Forward exchanges the last w - 1 tokens of each rank, backward the gradients of these halos. Every rank has to run
    both passes, including one without tokens.

    x: (t, d), the rank's tokens; further rows are slack.
    weight: (d, w), the same on all ranks. Its gradient is this rank's part of the sum over ranks.
    bias: (d,), as weight.
    kernel: replaces packproof's own; has the signature of `packproof.refs.causal_conv1d`.

    >>> import torch
    >>> from packproof import parallel, refs
    >>> x, weight, cu_seqlens = torch.randn(6, 1), torch.ones(1, 3), torch.tensor([0, 4, 6])
    >>> def program(group):
    ...     shard = parallel.Shard(cu_seqlens, group)
    ...     return parallel.causal_conv1d(x[shard.rows], weight, shard=shard, kernel=refs.causal_conv1d)
    >>> y = torch.cat(parallel.run_ranks(3, program))
    >>> torch.equal(y, refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens))
    True
    """
    convolve: Callable[..., Any] = kernel or kernels.causal_conv1d
    require_shard("causal_conv1d", shard)
    shard.require_tokens("causal_conv1d", "x", x)
    reach, states = weight.shape[-1] - 1, None
    if shard.is_cut and reach:
        x, halo = _with_halo(x, reach, shard, kernel is None)
        if shard.enters:
            zero_states = x.new_zeros(len(shard.lengths) - 1, x.shape[1], reach)
            states = torch.cat([halo.T[None], zero_states])
    if not shard.tokens:
        return empty_rank_output(x)
    bias_argument = {} if bias is None else {"bias": bias}
    result: Tensor = convolve(
        x, weight, **bias_argument, cu_seqlens=shard.cu_seqlens(x.device), initial_states=states, activation=activation
    )
    return result


class _Halo(torch.autograd.Function):
    """The tokens, and their halo: the `reach` tokens before them in the same document, zeros before its start.

    fresh: the incoming gradient of the tokens may be overwritten, since no one else holds it (packproof's own kernel).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, reach: int, shard: Shard, fresh: bool) -> tuple[Tensor, Tensor]:
        ctx.reach, ctx.shard, ctx.fresh = reach, shard, fresh
        last_tokens = x[max(shard.tokens - reach, 0) : shard.tokens]
        tail = torch.cat([x.new_zeros(reach - len(last_tokens), x.shape[1]), last_tokens])
        tails = all_gather(shard, tail, "tokens before a cut of causal_conv1d, forward")
        halo = x.new_zeros(reach, x.shape[1])
        for rank, tail_rows, halo_rows in shard.tails_before(shard.rank, reach):
            halo[halo_rows] = tails[rank, tail_rows]
        return x.view_as(x), halo

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor, dhalo: Tensor) -> Any:
        shard, reach = ctx.shard, ctx.reach
        halos = all_gather(shard, dhalo, "gradients of tokens before a cut of causal_conv1d, backward")
        contributions = [
            (halos[later, halo_rows], shard.tokens - (halo_rows.stop - halo_rows.start))
            for later in range(shard.rank + 1, shard.ranks)
            for rank, _, halo_rows in shard.tails_before(later, reach)
            if rank == shard.rank
        ]
        if not contributions:
            return dx, None, None, None
        first_row = min(start for _, start in contributions)
        tail = dx[first_row : shard.tokens].to(
            torch.promote_types(dx.dtype, torch.float32)
        )  # rounded once, after the sum
        for part, start in contributions:
            tail = torch.cat([tail[: start - first_row], tail[start - first_row :] + part.to(tail.dtype)])
        dx = dx if ctx.fresh else dx.clone()
        dx[first_row : shard.tokens] = tail.to(dx.dtype)
        return dx, None, None, None


_with_halo: Callable[..., Any] = _Halo.apply
