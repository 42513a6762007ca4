"""What ranks tell each other: one all-gather, in which each of them says one thing to all."""

import torch
import torch.distributed as dist
from torch import Tensor

from packproof.parallel.shard import Shard
from packproof.refs.errors import PackproofError

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # as torch 2.13 renamed it


def all_gathered(shard: Shard, x: Tensor, what: str) -> Tensor:
    """x of all ranks, (ranks, *x.shape). what: is exchanged, for the message of a failure.

    Raises PackproofError where a rank does not take part.
    """
    if shard.watch is not None:
        shard.watch.arrive(shard.group, what)
    out = x.new_empty((shard.ranks, *x.shape))
    try:
        _all_gather(out.view(-1), x.contiguous().view(-1), group=shard.group)
    except RuntimeError as error:
        if isinstance(error, PackproofError):
            raise
        lost = shard.watch.missing(shard.group) if shard.watch is not None else ""
        raise PackproofError(
            f"rank {shard.rank} of {shard.ranks}, exchange of {what}: {lost or 'another rank is gone'} ({error})"
        ) from error
    return out


def combined(states: Tensor, decays: Tensor, ranks: tuple[int, ...]) -> Tensor:
    """The state that those ranks leave, one after the other: h = decay h + state, from zero.

    states: (ranks, ...). decays: (ranks, ...) of axes that the states' begin with.
    """
    h = states[ranks[0]]
    for rank in ranks[1:]:
        decay = decays[rank]
        h = decay.reshape(*decay.shape, *[1] * (h.ndim - decay.ndim)) * h + states[rank]
    return h


def flat(*tensors: Tensor) -> Tensor:
    return torch.cat([x.reshape(-1) for x in tensors])
