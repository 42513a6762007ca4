"""Collectives between ranks, with an error message that names missing ranks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from packproof.base.errors import PackproofError
from packproof.parallel.cut import Cut

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13


def all_gather(cut: Cut, x: Tensor, label: str) -> Tensor:
    """Stack x of all ranks: (ranks, *x.shape). Raises PackproofError if a rank does not take part.

    label: names the exchange in the error message.
    """
    out = x.new_empty((cut.ranks, *x.shape))
    with _exchange(cut, label):
        _all_gather(out.view(-1), x.contiguous().view(-1), group=cut.group)
    return out


def all_to_all(cut: Cut, x: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int], label: str) -> Tensor:
    """Send rows to each rank; return the rows received from each, in the order of ranks.

    x: the rows to send, in the order of ranks.
    send_counts, receive_counts: number of rows, by rank.
    label: names the exchange in the error message.

    Raises PackproofError if a rank does not take part.
    """
    out = x.new_empty((sum(receive_counts), *x.shape[1:]))
    with _exchange(cut, label):
        dist.all_to_all_single(out, x.contiguous(), list(receive_counts), list(send_counts), group=cut.group)
    return out


@contextmanager
def _exchange(cut: Cut, label: str) -> Iterator[None]:
    if cut.watch is not None:
        cut.watch.arrive(cut.group, label)
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, PackproofError):
            raise
        missing_ranks = cut.watch.missing(cut.group) if cut.watch is not None else ""
        raise PackproofError(
            f"rank {cut.rank} of {cut.ranks}, exchange of {label}: {missing_ranks or 'another rank is gone'} ({error})"
        ) from error


def combine_states(states: Tensor, decays: Tensor, ranks: tuple[int, ...]) -> Tensor:
    """Combine the states of consecutive ranks: h = decay h + state, from zero.

    states: (ranks, ...).
    decays: (ranks, ...), with leading axes of the states.
    """
    h = states[ranks[0]]
    for rank in ranks[1:]:
        decay = decays[rank]
        h = decay.reshape(*decay.shape, *[1] * (h.ndim - decay.ndim)) * h + states[rank]
    return h


def concatenate_flat(*tensors: Tensor) -> Tensor:
    return torch.cat([x.reshape(-1) for x in tensors])
