"""Metadata: arguments of kernels made from `cu_seqlens`, once per batch as in training, and again after an edit.

Each is a function of `cu_seqlens` (s + 1,) and the number of rows of the pack, slack included. Write your own in the
same form. `@per_token` declares a result with an entry for each row, to be laid out like the tokens.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from packproof.base.arguments import check_offsets_form
from packproof.base.errors import UsageError
from packproof.refs import seq_idx_from_cu_seqlens

T = TypeVar("T")
Metadata = Callable[[Tensor, int], Any]

_cache: Any = WeakIdKeyDictionary()  # values made from offsets, by the tensor of offsets; freed with it


def once(key: Hashable, compute: Callable[[], T], cu_seqlens: Tensor, *other_tensors: Tensor) -> T:
    """The result of `compute()`, cached with the offsets until one of the tensors is written to.

    key: tells the values of one tensor of offsets apart.
    compute: called at the first use, and again after an edit; always where a tensor was made under
        torch.inference_mode, which counts no edits, and inside a transformation of torch.func, whose tensors end there.
    cu_seqlens: the offsets that own the cached value; it is freed with them.
    other_tensors: further tensors used by `compute`.

    >>> import torch
    >>> from packproof import adapters
    >>> offsets = torch.tensor([0, 2, 5])
    >>> first = adapters.once("lengths", offsets.diff, offsets)
    >>> adapters.once("lengths", offsets.diff, offsets) is first
    True
    >>> offsets[1] = 3
    >>> adapters.once("lengths", offsets.diff, offsets)
    tensor([3, 2])
    """
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
    if is_transformed or any(x.is_inference() for x in (cu_seqlens, *other_tensors)):
        return compute()
    entries = _cache.setdefault(cu_seqlens, {})
    state = [(id(x), x._version) for x in (cu_seqlens, *other_tensors)]
    if key in entries and entries[key][0] == state:
        return entries[key][2]  # type: ignore[no-any-return]
    value = compute()
    if value is not cu_seqlens:  # the offsets as a value of their own entry would never be freed
        strong_references = [x for x in other_tensors if x is not cu_seqlens]  # their ids could be reused otherwise
        entries[key] = state, strong_references, value
    return value


@dataclass(frozen=True)
class PerToken:
    """Metadata with an entry for each row of the pack."""

    make: Metadata
    """Computes the entries from `cu_seqlens` and the number of rows."""
    outside: int | float | bool
    """The entry of padding rows added by a convention."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.make.__doc__)

    def __call__(self, cu_seqlens: Tensor, tokens: int) -> Any:
        return self.make(cu_seqlens, tokens)


def per_token(*, outside: float | bool) -> Callable[[Metadata], PerToken]:
    """Declare metadata with an entry for each row of the pack, (t, ...).

    outside: the entry of padding rows added by a convention: a number, True or False.
    Raises UsageError for anything else.

    >>> import torch
    >>> from packproof import adapters
    >>> @adapters.per_token(outside=0)
    ... def first(cu_seqlens, tokens):
    ...     return torch.zeros(tokens, dtype=torch.int32).index_fill(0, cu_seqlens[:-1], 1)
    >>> first(torch.tensor([0, 2, 5]), 5)
    tensor([1, 0, 1, 0, 0], dtype=torch.int32)
    """
    if not isinstance(outside, bool | int | float):
        raise UsageError(f"per_token: outside is {outside!r}, expected a number, True or False")
    return lambda make: PerToken(make, outside)


@dataclass(frozen=True)
class OfKeys:
    """Metadata of the keys, made from `cu_seqlens_k` and their number of rows.

    For kernels that take keys with lengths of their own.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.OfKeys(adapters.max_seqlen)(torch.tensor([0, 2, 5]), 5)
    3
    """

    make: Metadata
    """Makes the metadata from the offsets of the keys and their number of rows."""

    def __call__(self, cu_seqlens: Tensor, tokens: int) -> Any:
        return self.make(cu_seqlens, tokens)


def cu_seqlens(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(s + 1,): the offsets unchanged, int32 or int64; the same tensor.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.cu_seqlens(torch.tensor([0, 2, 5]), 5)
    tensor([0, 2, 5])
    """
    check_offsets_form("cu_seqlens", cu_seqlens)
    return cu_seqlens


def cu_seqlens_int32(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(s + 1,) int32: the offsets, for kernels limited to int32.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.cu_seqlens_int32(torch.tensor([0, 2, 5]), 5)
    tensor([0, 2, 5], dtype=torch.int32)
    """
    check_offsets_form("cu_seqlens_int32", cu_seqlens)
    return cu_seqlens.int()


def cu_seqlens_int64(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(s + 1,) int64: the offsets, for kernels limited to int64.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.cu_seqlens_int64(torch.tensor([0, 2, 5], dtype=torch.int32), 5)
    tensor([0, 2, 5])
    """
    check_offsets_form("cu_seqlens_int64", cu_seqlens)
    return cu_seqlens.long()


def lengths(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(s,) int32: the number of tokens of each sequence.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.lengths(torch.tensor([0, 2, 5]), 5)
    tensor([2, 3], dtype=torch.int32)
    """
    check_offsets_form("lengths", cu_seqlens)
    return cu_seqlens.diff().int()


def max_seqlen(cu_seqlens: Tensor, tokens: int) -> int:
    """The number of tokens of the longest sequence, on the host.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.max_seqlen(torch.tensor([0, 2, 5]), 5)
    3
    """
    check_offsets_form("max_seqlen", cu_seqlens)
    return int(cu_seqlens.diff().max()) if len(cu_seqlens) > 1 else 0


def num_sequences(cu_seqlens: Tensor, tokens: int) -> int:
    """The number of sequences, empty ones included, on the host.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.num_sequences(torch.tensor([0, 2, 5]), 5)
    2
    """
    check_offsets_form("num_sequences", cu_seqlens)
    return len(cu_seqlens) - 1


def num_tokens(cu_seqlens: Tensor, tokens: int) -> int:
    """The number of rows of the pack, slack included, on the host.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.num_tokens(torch.tensor([0, 2, 5]), 6)
    6
    """
    return tokens


@per_token(outside=-1)
def seq_idx(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(t,) int32: the sequence of each row, -1 in slack.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.seq_idx(torch.tensor([0, 2, 5]), 6)
    tensor([ 0,  0,  1,  1,  1, -1], dtype=torch.int32)
    """
    return seq_idx_from_cu_seqlens(cu_seqlens, tokens)


@per_token(outside=0)
def segment_ids(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(t,) int32: the sequence of each row, counted from 1, 0 in slack.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.segment_ids(torch.tensor([0, 2, 5]), 6)
    tensor([1, 1, 2, 2, 2, 0], dtype=torch.int32)
    """
    return seq_idx(cu_seqlens, tokens) + 1  # type: ignore[no-any-return]


@per_token(outside=0)
def position_ids(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(t,) int32: the position of each row in its sequence, 0 in slack.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.position_ids(torch.tensor([0, 2, 5]), 6)
    tensor([0, 1, 0, 1, 2, 0], dtype=torch.int32)
    """
    return positions(cu_seqlens, tokens).clamp(min=0)


@per_token(outside=False)
def mask(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(t,) bool: whether a row belongs to a sequence.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.mask(torch.tensor([0, 2, 5]), 6)
    tensor([ True,  True,  True,  True,  True, False])
    """
    return seq_idx(cu_seqlens, tokens) >= 0  # type: ignore[no-any-return]


def positions(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(t,) int32: the position of each row in its sequence, -1 in slack."""
    sequence = seq_idx_from_cu_seqlens(cu_seqlens, tokens)
    rows = torch.arange(tokens, device=cu_seqlens.device)
    return torch.where(sequence < 0, -1, rows - cu_seqlens[sequence.clamp(min=0)]).int()
