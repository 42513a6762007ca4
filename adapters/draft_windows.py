"""Windows of a convolution after each draft, in a buffer beside the pool; and drafts as the nodes of a tree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packproof.adapters.pool_slots import DraftBuffer
from packproof.adapters.tokens import Padded
from packproof.base.errors import ArgumentError, UsageError
from packproof.properties.ops import Op


@dataclass(frozen=True)
class Tree(Padded):
    """Drafts in a tree: a batch with a row for each sequence, where token i of a sequence is node 2 i.

    The nodes between are rejected siblings: node 2 i + 1 has the parent of node 2 i + 2, and no sequence goes on from
    it. A kernel that takes the nodes for a chain computes with them. `parents` is the kernel's metadata.

    >>> import torch
    >>> from packproof import adapters
    >>> offsets = torch.tensor([0, 2])
    >>> adapters.Tree().to(torch.tensor([5.0, 6.0]), offsets), adapters.Tree().parents(offsets, 2)
    (tensor([[5., 1., 6., 1.]]), tensor([[-1,  0,  0,  2]]))
    """

    def to(self, x: Tensor, cu_seqlens: Tensor, outside: float | bool | None = None) -> Tensor:
        rows = super().to(x, cu_seqlens, outside).movedim(self.axis, 1)
        siblings = torch.full_like(rows, self.fill if outside is None else outside)
        return torch.stack([rows, siblings], 2).flatten(1, 2).movedim(1, self.axis)

    def back(self, y: Tensor, cu_seqlens: Tensor, tokens: int) -> Tensor:
        return super().back(y.movedim(self.axis, 1)[:, ::2].movedim(1, self.axis), cu_seqlens, tokens)

    def parents(self, cu_seqlens: Tensor, tokens: int) -> Tensor:  # noqa: ARG002 - a function for metadata
        """The parent of each node (s, nodes), -1 for the first one."""
        longest = int(cu_seqlens.diff().amax()) if len(cu_seqlens) > 1 else 0
        node = torch.arange(2 * longest, device=cu_seqlens.device)
        return torch.where(node % 2 == 1, node - 1, (node - 2).clamp(min=-1)).expand(len(cu_seqlens) - 1, -1)


@dataclass(frozen=True)
class WindowBuffer(DraftBuffer):
    """A `DraftBuffer` of a convolution: its rows hold a window of width - 1 inputs for each draft, (a, d, width - 1).

    The op's slot is one row of inputs, in which these windows overlap. All values of a window are judged; one that a
    kernel did not write keeps NaN but for its last input.

    >>> import torch
    >>> from packproof import adapters
    >>> layout, states = adapters.WindowBuffer("pool", "slots", width=3), torch.tensor([[[1.0, 2.0, 3.0]]])
    >>> layout.to(states)[layout.indices(torch.tensor([0]), states.shape)][0, 0]
    tensor([[1., 2.]])
    """

    width: int = 4
    """The width of the convolution."""
    nodes: int = 1
    """Entries of the buffer for a draft: 2 where tokens are a `Tree`, whose siblings have entries, too."""

    def __post_init__(self) -> None:
        if self.width < 2 or self.nodes < 1:
            raise UsageError(f"WindowBuffer: {self}, expected a width of at least 2 and at least one entry for a draft")

    def to(self, states: Tensor) -> Tensor:
        windows = self._windows(states)
        free = windows.new_full((*windows.shape[:1], self.nodes - 1, *windows.shape[2:]), float("nan"))
        windows[:, 1:, :, :-1] = float("nan")
        entries = [part for window in torch.split(windows, 1, 1) for part in (window, free)]
        return super().to(torch.cat(entries, 1))

    def back(self, pool: Tensor, shape: Sequence[int]) -> Tensor:
        windows = super().back(pool, shape)[:, :: self.nodes]
        drafts = shape[2] - self.width + 2
        if windows.shape[1:] != (drafts, shape[1], self.width - 1):
            raise ArgumentError(
                f"a kernel with slots={self} returned {tuple(pool.shape)}, expected the shape of its buffer"
            )
        row = torch.cat([windows[:, 0], windows[:, 1:, :, -1].transpose(1, 2)], 2)
        judged = row.clone()
        for i in range(1, drafts):  # where windows disagree, the row takes the value that differs
            place = slice(i, i + self.width - 1)
            differs = ~windows[:, i].isnan() & (windows[:, i] != row[:, :, place])
            judged[:, :, place] = torch.where(differs, windows[:, i], judged[:, :, place])
        return judged

    def fits(self, op: Op) -> bool:
        return op.keeps_drafts and op.window is not None

    def more_arguments(self, states: Tensor, slots: Tensor, accepted: Tensor | None) -> Mapping[str, Any]:
        return super().more_arguments(self._windows(states), slots, accepted)

    def _windows(self, states: Tensor) -> Tensor:
        """(c, d, width - 1 + a - 1) as (c, a, d, width - 1)."""
        return states.unfold(2, self.width - 1, 1).transpose(1, 2).clone()
