"""The layout of a pack: where each sequence lies, as lengths, cu_seqlens, seq_idx or position_ids."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Any

import torch
from torch import Tensor

from packproof.base.arguments import (
    OFFSETS,
    check_offsets,
    check_offsets_form,
    host_offsets,
    move_to_device,
    whole_number,
)
from packproof.base.errors import LayoutError, checked_call, checked_init
from packproof.base.wording import kind, plural

_UNUSED = -1  # seq_idx of a row that belongs to no sequence


@checked_init
@dataclass(frozen=True)
class PackLayout:
    """Sequences laid one after the other along the token axis.

    Raises LayoutError for negative or fractional counts, and if there are not as many gaps as sequences.

    >>> from packproof import PackLayout
    >>> layout = PackLayout((2, 0, 3), slack=1)
    >>> layout.n_sequences, layout.n_tokens, layout.total_tokens, layout.max_seqlen
    (3, 5, 6, 3)
    >>> layout.cu_seqlens()
    tensor([0, 2, 2, 5], dtype=torch.int32)
    """

    lengths: tuple[int, ...]
    """Tokens of each sequence; 0 is allowed."""
    slack: int = 0
    """Unused rows after the last sequence."""
    gaps: tuple[int, ...] = ()
    """Unused rows after each sequence, () for none. A gap after the last sequence counts as slack."""

    def __post_init__(self) -> None:
        lengths = _counts("lengths", self.lengths)
        gaps = _counts("gaps", self.gaps)
        slack = whole_number("PackLayout", "slack", self.slack)
        if gaps and len(gaps) != len(lengths):
            actual = f"{plural(len(gaps), 'gap')} for {plural(len(lengths), 'sequence')}"
            raise LayoutError(f"PackLayout: {actual}; one gap after each was expected")
        if gaps:
            gaps, slack = (*gaps[:-1], 0), slack + gaps[-1]
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "slack", slack)
        object.__setattr__(self, "gaps", gaps if any(gaps) else ())

    @classmethod
    @checked_call
    def from_lengths(cls, lengths: Iterable[int] | Tensor, slack: int = 0) -> "PackLayout":
        """From the length of each sequence: integers or an integer tensor (s,).

        Raises LayoutError for anything else.

        >>> from packproof import PackLayout
        >>> PackLayout.from_lengths([2, 0, 3], slack=1).seq_idx()
        tensor([ 0,  0,  2,  2,  2, -1], dtype=torch.int32)
        """
        counts = _host_ids("lengths", lengths) if isinstance(lengths, Tensor) else lengths
        return cls(counts, slack)  # type: ignore[arg-type]  # made a tuple there

    @classmethod
    @checked_call
    def from_cu_seqlens(cls, cu_seqlens: Tensor, total_tokens: int | None = None) -> "PackLayout":
        """From offsets, int32 or int64 (s + 1,); `total_tokens` counts all rows of the pack (default: the last offset).

        Reads the offsets on the host. Raises LayoutError if they do not start at 0, decrease, or pass the tokens.

        >>> import torch
        >>> from packproof import PackLayout
        >>> PackLayout.from_cu_seqlens(torch.tensor([0, 2, 5]), total_tokens=6)
        PackLayout(lengths=(2, 3), slack=1, gaps=())
        """
        check_offsets_form("PackLayout", cu_seqlens)
        offsets = host_offsets("PackLayout", cu_seqlens)
        n_rows = None if total_tokens is None else whole_number("PackLayout", "total_tokens", total_tokens)
        total = max(offsets) if n_rows is None else n_rows
        check_offsets("PackLayout", cu_seqlens, total)
        return cls(tuple(b - a for a, b in pairwise(offsets)), slack=total - offsets[-1])

    @classmethod
    @checked_call
    def from_seq_idx(cls, seq_idx: Tensor, n_sequences: int | None = None) -> "PackLayout":
        """From the sequence index of each row, an integer tensor (t,); -1 marks unused rows.

        A missing index is an empty sequence; `n_sequences` adds empty ones at the end. Unused rows before sequence j
        are the gap after j - 1. Reads the indices on the host. Raises LayoutError if an index recurs or decreases, is
        below -1 or not below `n_sequences`, or if unused rows come before sequence 0.

        >>> import torch
        >>> from packproof import PackLayout
        >>> PackLayout.from_seq_idx(torch.tensor([0, 0, -1, 2, 2]))
        PackLayout(lengths=(2, 0, 2), slack=0, gaps=(0, 1, 0))
        """
        if n_sequences is not None:
            n_sequences = whole_number("PackLayout", "n_sequences", n_sequences)
        bound = "" if n_sequences is None else f" and below {n_sequences}"
        lengths: list[int] = []
        gaps: list[int] = []
        token = unused = 0
        for j, rows in groupby(_host_ids("seq_idx", seq_idx)):
            n = len(list(rows))
            if j == _UNUSED:
                unused = n
            elif j < _UNUSED or (n_sequences is not None and j >= n_sequences):
                raise LayoutError(f"PackLayout: seq_idx is {j} at token {token}; -1, or 0 or more{bound}, was expected")
            elif j < len(lengths):
                raise LayoutError(
                    f"PackLayout: seq_idx {'recurs' if lengths[j] else 'decreases'} to {j} at token {token}\n"
                    "    The tokens of a sequence lie together, and sequences are numbered as they lie."
                )
            elif unused and j == 0:
                raise LayoutError(
                    f"PackLayout: seq_idx starts with {plural(unused, 'unused row')}; sequence 0 starts at token 0"
                )
            else:
                empty = j - len(lengths)
                lengths += [*[0] * empty, n]
                gaps += [0] * (empty + 1)
                if unused:
                    gaps[j - 1], unused = unused, 0
            token += n
        missing = [0] * (0 if n_sequences is None else n_sequences - len(lengths))
        return cls((*lengths, *missing), unused, (*gaps, *missing))

    @classmethod
    @checked_call
    def from_position_ids(cls, position_ids: Tensor, slack: int = 0) -> "PackLayout":
        """From the position of each token in its sequence, an integer tensor (t,); the last `slack` rows are unused.

        Position ids do not show empty sequences. Reads them on the host. Raises LayoutError at the first position
        other than 0 or one more than the previous one.

        >>> import torch
        >>> from packproof import PackLayout
        >>> PackLayout.from_position_ids(torch.tensor([0, 1, 0, 1, 2, 0]), slack=1)
        PackLayout(lengths=(2, 3), slack=1, gaps=())
        """
        ids = _host_ids("position_ids", position_ids)
        slack = whole_number("PackLayout", "slack", slack)
        if slack > len(ids):
            raise LayoutError(f"PackLayout: slack is {slack} but position_ids has {plural(len(ids), 'row')}")
        lengths: list[int] = []
        for token, position in enumerate(ids[: len(ids) - slack]):
            if position == 0:
                lengths.append(1)
            elif lengths and position == lengths[-1]:
                lengths[-1] += 1
            else:
                expected = f"0 or {lengths[-1]}" if lengths else "0"
                raise LayoutError(f"PackLayout: position_ids is {position} at token {token}; {expected} was expected")
        return cls(tuple(lengths), slack)

    @property
    def n_sequences(self) -> int:
        """Number of sequences, including empty ones.

        >>> from packproof import PackLayout
        >>> PackLayout((2, 0, 3)).n_sequences
        3
        """
        return len(self.lengths)

    @property
    def n_tokens(self) -> int:
        """Number of tokens in all sequences, without gaps and slack.

        >>> from packproof import PackLayout
        >>> PackLayout((2, 0, 3), slack=4).n_tokens
        5
        """
        return sum(self.lengths)

    @property
    def total_tokens(self) -> int:
        """Number of rows of the pack, including gaps and slack.

        >>> from packproof import PackLayout
        >>> PackLayout((2, 0, 3), slack=4).total_tokens
        9
        """
        return self.n_tokens + sum(self.gaps) + self.slack

    @property
    def max_seqlen(self) -> int:
        """Number of tokens in the longest sequence, 0 without sequences.

        >>> from packproof import PackLayout
        >>> PackLayout((2, 0, 3)).max_seqlen
        3
        """
        return max(self.lengths, default=0)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first row of each sequence.

        >>> from packproof import PackLayout
        >>> PackLayout((2, 0, 3), gaps=(1, 0, 0)).offsets
        (0, 3, 3)
        """
        return tuple(accumulate(self._strides(), initial=0))[: self.n_sequences]

    @property
    def slices(self) -> tuple[slice, ...]:
        """The rows of each sequence.

        >>> from packproof import PackLayout
        >>> PackLayout((2, 3)).slices
        (slice(0, 2, None), slice(2, 5, None))
        """
        return tuple(slice(start, start + n) for start, n in zip(self.offsets, self.lengths, strict=True))

    @checked_call
    def cu_seqlens(self, device: torch.device | str | None = None, dtype: torch.dtype = torch.int32) -> Tensor:
        """Offsets (s + 1,), int32 or int64. Raises LayoutError if there are gaps, or too many tokens for the dtype.

        >>> import torch
        >>> from packproof import PackLayout
        >>> PackLayout((2, 0, 3)).cu_seqlens(dtype=torch.int64)
        tensor([0, 2, 2, 5])
        """
        if self.gaps:
            raise LayoutError(
                f"PackLayout: cu_seqlens cannot express the gaps {self.gaps}; use offsets and lengths, or seq_idx"
            )
        if dtype not in OFFSETS:
            raise LayoutError(f"PackLayout: dtype is {dtype} but torch.int32 or torch.int64 was expected")
        if self.n_tokens > torch.iinfo(dtype).max:
            raise LayoutError(f"PackLayout: {self.n_tokens} tokens do not fit int32 offsets; ask for dtype=torch.int64")
        return move_to_device("PackLayout", torch.tensor([0, *accumulate(self.lengths)], dtype=dtype), device)

    @checked_call
    def seq_idx(self, device: torch.device | str | None = None) -> Tensor:
        """The sequence of each row, int32 (t,); -1 in gaps and slack. Raises LayoutError for an unknown device.

        >>> from packproof import PackLayout
        >>> PackLayout((2, 0, 3), slack=1).seq_idx()
        tensor([ 0,  0,  2,  2,  2, -1], dtype=torch.int32)
        """
        ids = torch.full((self.total_tokens,), _UNUSED, dtype=torch.int32)
        for j, rows in enumerate(self.slices):
            ids[rows] = j
        return move_to_device("PackLayout", ids, device)

    @checked_call
    def position_ids(self, device: torch.device | str | None = None) -> Tensor:
        """The position of each row in its sequence, int32 (t,); 0 in gaps and slack. Raises LayoutError as `seq_idx`.

        >>> from packproof import PackLayout
        >>> PackLayout((2, 0, 3), slack=1).position_ids()
        tensor([0, 1, 0, 1, 2, 0], dtype=torch.int32)
        """
        ids = torch.zeros(self.total_tokens, dtype=torch.int32)
        for rows in self.slices:
            ids[rows] = torch.arange(rows.stop - rows.start, dtype=torch.int32)
        return move_to_device("PackLayout", ids, device)

    def _strides(self) -> tuple[int, ...]:
        return tuple(map(sum, zip(self.lengths, self.gaps, strict=True))) if self.gaps else self.lengths


@checked_call
def pack(tensors: Iterable[Tensor], slack: int = 0) -> tuple[Tensor, PackLayout]:
    """Lay sequences, each (t_j, ...) of one dtype and device, one after the other; then `slack` rows of zeros.

    Returns the packed tensor (sum t_j + slack, ...) and its layout. Raises LayoutError if there is no sequence, or if
    one has another trailing shape, dtype or device than the first.

    >>> import torch
    >>> from packproof import pack
    >>> pack([torch.tensor([1, 2]), torch.tensor([3])], slack=1)
    (tensor([1, 2, 3, 0]), PackLayout(lengths=(2, 1), slack=1, gaps=()))
    """
    sequences = _sequences(tensors)
    first_sequence = sequences[0]
    for j, tensor in enumerate(sequences):
        if not isinstance(tensor, Tensor):
            raise LayoutError(f"pack: sequence {j} is {kind(tensor)}; a tensor (t, ...) was expected")
        if tensor.ndim == 0:
            raise LayoutError(f"pack: sequence {j} has no token axis; shape (t, ...) was expected")
        row_type, first_row_type = ((x.shape[1:], x.dtype, x.device) for x in (tensor, first_sequence))
        if row_type != first_row_type:
            raise LayoutError(
                f"pack: sequence {j} is {_describe_tensor(tensor)} but sequence 0 is {_describe_tensor(first_sequence)}"
            )
    layout = PackLayout(tuple(len(tensor) for tensor in sequences), whole_number("pack", "slack", slack))
    return torch.cat([*sequences, first_sequence.new_zeros(layout.slack, *first_sequence.shape[1:])]), layout


def _sequences(tensors: Any) -> list[Tensor]:
    if isinstance(tensors, Tensor) or not isinstance(tensors, Iterable):
        actual = _describe_tensor(tensors) if isinstance(tensors, Tensor) else kind(tensors)
        raise LayoutError(f"pack: tensors is {actual}; one tensor (t, ...) for each sequence was expected, in a list")
    sequences = list(tensors)
    if not sequences:
        raise LayoutError(
            "pack: no sequences given; at least one is needed to know shape and dtype (it may have no tokens)"
        )
    return sequences


@checked_call
def unpack(packed: Tensor, layout: PackLayout) -> list[Tensor]:
    """The sequences of a pack (t, ...), as views. Raises LayoutError if the layout counts another number of rows.

    >>> import torch
    >>> from packproof import PackLayout, unpack
    >>> unpack(torch.tensor([1, 2, 3, 0]), PackLayout((2, 1), slack=1))
    [tensor([1, 2]), tensor([3])]
    """
    if not isinstance(packed, Tensor):
        raise LayoutError(f"unpack: packed is {kind(packed)}; a tensor (t, ...) was expected")
    if not isinstance(layout, PackLayout):
        actual = _describe_tensor(layout) if isinstance(layout, Tensor) else kind(layout)
        raise LayoutError(
            f"unpack: layout is {actual}; a PackLayout was expected\n"
            "    PackLayout.from_cu_seqlens(cu_seqlens, len(packed)) makes one."
        )
    rows = packed.shape[0] if packed.ndim else 0
    if not packed.ndim or rows != layout.total_tokens:
        raise LayoutError(
            f"unpack: packed has {plural(rows, 'row')} but the layout has {layout.total_tokens}: {layout}"
        )
    gaps = layout.gaps or (0,) * layout.n_sequences
    sizes = [size for pair in zip(layout.lengths, gaps, strict=True) for size in pair]
    parts = torch.split(packed, [*sizes, layout.slack])  # one split, not many slices: its backward is one cat
    return list(parts[: 2 * layout.n_sequences : 2])


@checked_call
def seq_idx_from_cu_seqlens(cu_seqlens: Tensor, total_tokens: int) -> Tensor:
    """The sequence of each row, int32 (total_tokens,), -1 in slack, on the device of `cu_seqlens`; no value is read.

    Raises LayoutError for offsets of another form, and for an invalid number of tokens.

    >>> import torch
    >>> from packproof.refs import seq_idx_from_cu_seqlens
    >>> seq_idx_from_cu_seqlens(torch.tensor([0, 2, 2, 5]), total_tokens=6)
    tensor([ 0,  0,  2,  2,  2, -1], dtype=torch.int32)
    """
    check_offsets_form("seq_idx_from_cu_seqlens", cu_seqlens)
    _check_total("seq_idx_from_cu_seqlens", total_tokens)
    ids, _ = _locate(cu_seqlens, total_tokens)
    return torch.where(ids < cu_seqlens.shape[0] - 1, ids, _UNUSED)


@checked_call
def position_ids_from_cu_seqlens(cu_seqlens: Tensor, total_tokens: int) -> Tensor:
    """The position of each row, int32 (total_tokens,), 0 in slack, on the device of `cu_seqlens`; no value is read.

    Raises LayoutError for offsets of another form, and for an invalid number of tokens.

    >>> import torch
    >>> from packproof.refs import position_ids_from_cu_seqlens
    >>> position_ids_from_cu_seqlens(torch.tensor([0, 2, 2, 5]), total_tokens=6)
    tensor([0, 1, 0, 1, 2, 0], dtype=torch.int32)
    """
    check_offsets_form("position_ids_from_cu_seqlens", cu_seqlens)
    _check_total("position_ids_from_cu_seqlens", total_tokens)
    ids, rows = _locate(cu_seqlens, total_tokens)
    return torch.where(ids < cu_seqlens.shape[0] - 1, rows - cu_seqlens[ids], 0).to(torch.int32)


def _check_total(function: str, total_tokens: Any) -> None:
    if not isinstance(total_tokens, torch.SymInt):  # reading a symbolic size would specialize torch.compile to it
        whole_number(function, "total_tokens", total_tokens)


def _locate(cu_seqlens: Tensor, total_tokens: int) -> tuple[Tensor, Tensor]:
    """For each row, how many sequences end at or before it (in slack: all of them), and the row itself."""
    rows = torch.arange(total_tokens, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
    # not in cu_seqlens[1:]: Inductor ignores the offset of a slice in searchsorted (PyTorch issue 182343)
    return torch.searchsorted(cu_seqlens.contiguous(), rows, right=True, out_int32=True) - 1, rows


def _counts(name: str, values: Any) -> tuple[int, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        actual = repr(values) if isinstance(values, int | float | str) else kind(values)
        raise LayoutError(f"PackLayout: {name} is {actual}; whole numbers, one for each sequence, were expected")
    return tuple(whole_number("PackLayout", f"{name} entry {i}", value) for i, value in enumerate(values))


def _host_ids(name: str, ids: Tensor) -> list[int]:
    if not isinstance(ids, Tensor) or ids.dtype not in OFFSETS or ids.ndim != 1:
        actual = _describe_tensor(ids) if isinstance(ids, Tensor) else kind(ids)
        raise LayoutError(f"PackLayout: {name} is {actual}; an int32 or int64 tensor of one axis was expected")
    return host_offsets("PackLayout", ids)


def _describe_tensor(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} on {tensor.device}"
