"""What kernels take besides or instead of `cu_seqlens`: made once per batch, as in training, and again after an edit.

Each of these is a function of `cu_seqlens` (s + 1,) and the number of rows of the pack, slack included. Write your own
in the same form; `@per_token` declares that its result has an entry for each row, to be laid out like the tokens.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from packproof.refs import seq_idx_from_cu_seqlens

T = TypeVar("T")
Metadata = Callable[[Tensor, int], Any]

_prepared: Any = WeakIdKeyDictionary()  # by offsets: what was made from them, freed with them


def once(what: Hashable, make: Callable[[], T], cu_seqlens: Tensor, *others: Tensor) -> T:
    """What `make` returns for these tensors, kept with the offsets until one of them is written to."""
    kept = _prepared.setdefault(cu_seqlens, {})
    state = [(id(x), x._version) for x in (cu_seqlens, *others)]
    if what in kept and kept[what][0] == state:
        return kept[what][2]  # type: ignore[no-any-return]
    made = make()
    if made is not cu_seqlens:  # which would keep itself alive
        kept[what] = state, others, made  # holds the others, whose ids could be reused otherwise
    return made


@dataclass(frozen=True)
class PerToken:
    """Metadata with an entry for each row. outside: the entry of rows that a convention adds, outside of sequences."""

    make: Metadata
    outside: int | float | bool

    def __call__(self, cu_seqlens: Tensor, tokens: int) -> Any:
        return self.make(cu_seqlens, tokens)


def per_token(*, outside: float | bool) -> Callable[[Metadata], PerToken]:
    """Declare metadata that has an entry for each row of the pack, (t, ...)."""
    return lambda make: PerToken(make, outside)


def cu_seqlens(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(s + 1,): the offsets unchanged, int32 or int64; the same tensor."""
    return cu_seqlens


def cu_seqlens_int32(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(s + 1,) int32: the offsets, for kernels that take int32 only."""
    return cu_seqlens.int()


def cu_seqlens_int64(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(s + 1,) int64: the offsets, for kernels that take int64 only."""
    return cu_seqlens.long()


def lengths(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(s,) int32: the number of tokens of each sequence."""
    return cu_seqlens.diff().int()


def max_seqlen(cu_seqlens: Tensor, tokens: int) -> int:
    """The number of tokens of the longest sequence, on the host."""
    return int(cu_seqlens.diff().max()) if len(cu_seqlens) > 1 else 0


@per_token(outside=-1)
def seq_idx(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(t,) int32: the sequence of each row, -1 in slack."""
    return seq_idx_from_cu_seqlens(cu_seqlens, tokens)


@per_token(outside=0)
def position_ids(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(t,) int32: the position of each row in its sequence, 0 in slack."""
    return positions(cu_seqlens, tokens).clamp(min=0)


@per_token(outside=False)
def mask(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(t,) bool: whether a row belongs to a sequence."""
    return seq_idx(cu_seqlens, tokens) >= 0  # type: ignore[no-any-return]


def positions(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(t,) int32: the position of each row in its sequence, -1 in slack."""
    sequence = seq_idx_from_cu_seqlens(cu_seqlens, tokens)
    rows = torch.arange(tokens, device=cu_seqlens.device)
    return torch.where(sequence < 0, -1, rows - cu_seqlens[sequence.clamp(min=0)]).int()
