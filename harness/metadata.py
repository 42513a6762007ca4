"""What adapters need beside `cu_seqlens`: made once a batch, as their users do, and again after an edit in place."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from packproof.refs import seq_idx_from_cu_seqlens

T = TypeVar("T")

_prepared: dict[str, Any] = {}


def once(what: str, make: Callable[[], T], cu_seqlens: Tensor, *others: Tensor) -> T:
    """What `make` returns of these tensors, kept for the offsets as long as nobody writes to one of them."""
    kept = _prepared.setdefault(what, WeakIdKeyDictionary())
    state = [(id(x), x._version) for x in (cu_seqlens, *others)]
    if cu_seqlens not in kept or kept[cu_seqlens][0] != state:
        kept[cu_seqlens] = state, others, make()  # holding the others, whose ids would be given away otherwise
    return kept[cu_seqlens][2]  # type: ignore[no-any-return]


def longest(cu_seqlens: Tensor) -> int:
    """Tokens of the longest sequence, on the host."""
    return once("longest", lambda: int(cu_seqlens.diff().max()) if len(cu_seqlens) > 1 else 0, cu_seqlens)


def seq_idx(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(t,): the sequence of each row, -1 in slack."""
    return once(f"seq_idx {tokens}", lambda: seq_idx_from_cu_seqlens(cu_seqlens, tokens), cu_seqlens)


def positions(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(t,): the position of each row in its sequence, -1 in slack."""

    def make() -> Tensor:
        sequence = seq_idx(cu_seqlens, tokens)
        rows = torch.arange(tokens, device=cu_seqlens.device)
        return torch.where(sequence < 0, -1, rows - cu_seqlens[sequence.clamp(min=0)])

    return once(f"positions {tokens}", make, cu_seqlens)
