"""Layouts of the tokens of a pack in a kernel: (t, ...) as in packproof, or another one.

`to` brings a packed tensor (t, ...) into the kernel's layout, `back` brings a result of the kernel to (t, ...). Both
are differentiable. Rows outside of the sequences come back as zeros.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packproof.adapters.metadata import max_seqlen, once, positions, seq_idx
from packproof.base.errors import ArgumentError, OutsideConvention, UsageError

MAX_ELEMENTS = 2**31


class Tokens(ABC):
    """A layout of tokens. Write your own with these two methods.

    >>> import torch
    >>> from packproof import adapters
    >>> class Reversed(adapters.Tokens):
    ...     def to(self, x, cu_seqlens, outside=None):
    ...         return x.flip(0)
    ...     def back(self, y, cu_seqlens, tokens):
    ...         return y.flip(0)
    >>> Reversed().to(torch.tensor([1, 2]), torch.tensor([0, 2]))
    tensor([2, 1])
    """

    @abstractmethod
    def to(self, x: Tensor, cu_seqlens: Tensor, outside: float | bool | None = None) -> Tensor:
        """x (t, ...) in the kernel's layout.

        outside: the value of added rows; None for the layout's own.
        """

    @abstractmethod
    def back(self, y: Tensor, cu_seqlens: Tensor, tokens: int) -> Tensor:
        """A result of the kernel as (t, ...). Raises ArgumentError if its rows are not laid out like the input's."""


@dataclass(frozen=True)
class Packed(Tokens):
    """The pack without a batch axis. `to` and `back` are views, not copies.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.Packed(axis=-1).to(torch.ones(5, 3), torch.tensor([0, 2, 5])).shape
    torch.Size([3, 5])
    """

    axis: int = 0
    """The axis of tokens. 0: (t, ...), as in packproof. 1: heads first, (h, t, k). -1: channels first, (d, t),
    channel-last in memory.
    """

    def __post_init__(self) -> None:
        if self.axis not in (0, 1, -1) or isinstance(self.axis, bool):
            raise UsageError(
                f"Packed: axis is {self.axis!r}, expected 0 (tokens first), 1 (heads first) or -1 (channels first)"
            )

    def to(self, x: Tensor, cu_seqlens: Tensor, outside: float | bool | None = None) -> Tensor:
        return x.movedim(0, token_axis(x, self.axis)) if self.axis else x

    def back(self, y: Tensor, cu_seqlens: Tensor, tokens: int) -> Tensor:
        if not self.axis:
            return y
        axis = token_axis(y, self.axis)
        if y.ndim < 1 or y.shape[axis] != tokens:
            raise shape_error(self, y, f"{tokens} along axis {axis}")
        return y.movedim(axis, 0)


@dataclass(frozen=True)
class Batched(Tokens):
    """A batch of one pack. `to` and `back` are views, not copies.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.Batched(axis=-1).to(torch.ones(5, 3), torch.tensor([0, 2, 5])).shape
    torch.Size([1, 3, 5])
    """

    axis: int = 1
    """The axis of tokens. 1: (1, t, ...). 2: heads first, (1, h, t, k). -1: channels first, (1, d, t), channel-last in
    memory.
    """

    def __post_init__(self) -> None:
        check_axis("Batched", self.axis)

    def to(self, x: Tensor, cu_seqlens: Tensor, outside: float | bool | None = None) -> Tensor:
        return move_token_axis(x.unsqueeze(0), self.axis)

    def back(self, y: Tensor, cu_seqlens: Tensor, tokens: int) -> Tensor:
        axis = token_axis(y, self.axis)
        if y.ndim < 2 or y.shape[0] != 1 or y.shape[axis] != tokens:
            raise shape_error(self, y, f"1 along axis 0 and {tokens} along axis {axis}")
        return y.movedim(axis, 1).squeeze(0)


@dataclass(frozen=True)
class Padded(Tokens):
    """A batch with a row for each sequence, padded at its end to the longest: (s, longest, ...). Slack is left out.

    A pack is outside of this convention if its padded tensor would have 2^31 elements or more.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.Padded().to(torch.zeros(3, 1), torch.tensor([0, 1, 3])).squeeze(-1)
    tensor([[0., 1.],
            [0., 0.]])
    """

    axis: int = 1
    """The axis of tokens, as in Batched."""
    fill: float = 1.0
    """The value of padding. It is not zero, to expose a kernel that reads padding."""

    def __post_init__(self) -> None:
        check_axis("Padded", self.axis)
        check_fill("Padded", self.fill)

    def to(self, x: Tensor, cu_seqlens: Tensor, outside: float | bool | None = None) -> Tensor:
        sequences, longest = len(cu_seqlens) - 1, once("longest", lambda: max_seqlen(cu_seqlens, len(x)), cu_seqlens)
        if sequences * longest * x[:1].numel() >= MAX_ELEMENTS:
            batch = f"a padded batch of {sequences} x {longest} tokens"
            raise OutsideConvention(f"{batch} would have 2^31 elements or more")
        fill = self.fill if outside is None else outside
        padded = scatter_rows(x, self._row_index(cu_seqlens, len(x)), sequences * longest, fill)
        return move_token_axis(padded.view(sequences, longest, *x.shape[1:]), self.axis)

    def back(self, y: Tensor, cu_seqlens: Tensor, tokens: int) -> Tensor:
        sequences, longest = len(cu_seqlens) - 1, once("longest", lambda: max_seqlen(cu_seqlens, tokens), cu_seqlens)
        axis = token_axis(y, self.axis)
        if y.ndim < 2 or y.shape[0] != sequences or y.shape[axis] != longest:
            raise shape_error(self, y, f"{sequences} along axis 0 and {longest} along axis {axis}")
        return gather_rows(y.movedim(axis, 1).flatten(0, 1), self._row_index(cu_seqlens, tokens), tokens)

    def _row_index(self, cu_seqlens: Tensor, tokens: int) -> Tensor:
        """The row of each token in the flattened batch."""

        def make() -> Tensor:
            n, longest = int(cu_seqlens[-1]), max_seqlen(cu_seqlens, tokens)
            return seq_idx(cu_seqlens, n).long() * longest + positions(cu_seqlens, n)  # type: ignore[no-any-return]

        return once("padded rows", make, cu_seqlens)


@dataclass(frozen=True)
class Gaps(Tokens):
    """(t', ...): each sequence padded to a multiple of rows, as in Transformer Engine's THD. Slack is left out.

    >>> import torch
    >>> from packproof import adapters
    >>> adapters.Gaps(multiple=2).to(torch.zeros(3, 1), torch.tensor([0, 1, 3])).squeeze(-1)
    tensor([0., 1., 0., 0.])
    """

    multiple: int = 16
    """The number of rows of each padded sequence is a multiple of it."""
    fill: float = 1.0
    """The value of padding. It is not zero, to expose a kernel that reads padding."""

    def __post_init__(self) -> None:
        if type(self.multiple) is not int or self.multiple < 1:
            raise UsageError(f"Gaps: multiple is {self.multiple!r}, expected a number of rows, at least 1")
        check_fill("Gaps", self.fill)

    def cu_seqlens(self, cu_seqlens: Tensor, tokens: int) -> Tensor:
        """Metadata: (s + 1,), the first row of each padded sequence, then their end; `cu_seqlens_padded` in THD."""
        padded_lengths = (cu_seqlens.diff() + self.multiple - 1) // self.multiple * self.multiple
        return torch.cat([cu_seqlens[:1], padded_lengths.cumsum(0).to(cu_seqlens.dtype)])

    def to(self, x: Tensor, cu_seqlens: Tensor, outside: float | bool | None = None) -> Tensor:
        rows, row_count = self._row_index(cu_seqlens)
        return scatter_rows(x, rows, row_count, self.fill if outside is None else outside)

    def back(self, y: Tensor, cu_seqlens: Tensor, tokens: int) -> Tensor:
        rows, row_count = self._row_index(cu_seqlens)
        if y.ndim < 1 or len(y) != row_count:
            raise shape_error(self, y, f"{row_count} along axis 0")
        return gather_rows(y, rows, tokens)

    def _row_index(self, cu_seqlens: Tensor) -> tuple[Tensor, int]:
        """The row of each token, and the number of rows."""

        def make() -> tuple[Tensor, int]:
            n, starts = int(cu_seqlens[-1]), self.cu_seqlens(cu_seqlens, 0)
            sequence: Any = seq_idx(cu_seqlens, n).long()
            return starts[sequence].long() + positions(cu_seqlens, n), int(starts[-1])

        return once((self, "rows"), make, cu_seqlens)


def check_axis(name: str, axis: int) -> None:
    if axis not in (1, 2, -1):
        raise UsageError(f"{name}: axis is {axis!r}, expected 1 (tokens first), 2 (heads first) or -1 (channels first)")


def token_axis(x: Tensor, axis: int) -> int:
    """The axis of tokens in x. In a tensor with fewer axes, such as position ids, it is the last one."""
    return min(axis % max(x.ndim, 1), x.ndim - 1) if axis < 0 else min(axis, x.ndim - 1)


def move_token_axis(x: Tensor, axis: int) -> Tensor:
    """(b, t, ...) with the tokens moved to this axis."""
    return x.movedim(1, token_axis(x, axis))


def scatter_rows(x: Tensor, rows: Tensor, row_count: int, fill: float | bool) -> Tensor:
    """`row_count` rows: the tokens of x at `rows`, `fill` elsewhere. The gradient of index_copy is exact."""
    out = torch.full((row_count, *x.shape[1:]), fill, dtype=x.dtype, device=x.device)
    return out.index_copy(0, rows, x[: len(rows)])


def gather_rows(y: Tensor, rows: Tensor, tokens: int) -> Tensor:
    """(t, ...): y at `rows`, zeros in slack."""
    token_rows = y.index_select(0, rows)
    return (
        torch.cat([token_rows, token_rows.new_zeros(tokens - len(rows), *y.shape[1:])])
        if tokens > len(rows)
        else token_rows
    )


def shape_error(tokens: Tokens, y: Tensor, expected: str) -> ArgumentError:
    return ArgumentError(
        f"a kernel with tokens={tokens} returned {tuple(y.shape)}, expected {expected}; declare how its tokens are "
        "laid out, or return the tensor in the layout of its input"
    )


def check_fill(convention: str, fill: object) -> None:
    if isinstance(fill, bool) or not isinstance(fill, int | float):
        raise UsageError(f"{convention}: fill is {fill!r}, expected a number")
