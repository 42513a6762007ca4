"""Documents side by side in one row, and the tensors that say where they begin."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pack:
    """A layout of documents. lengths: tokens of each. device, dtype: of the module that gets them."""

    lengths: tuple[int, ...]
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @cached_property
    def offsets(self) -> Tensor:
        """int64 (s + 1,), on the CPU."""
        return torch.tensor([0, *self.lengths]).cumsum(0)

    @cached_property
    def document(self) -> Tensor:
        """int64 (t,): the document of each token."""
        lengths = torch.tensor(self.lengths)
        return torch.arange(len(self.lengths)).repeat_interleave(lengths).to(self.device)

    @cached_property
    def position(self) -> Tensor:
        """int64 (t,): the position of each token in its document."""
        starts = self.offsets[:-1].repeat_interleave(torch.tensor(self.lengths))
        return (torch.arange(self.tokens) - starts).to(self.device)

    @cached_property
    def sees(self) -> Tensor:
        """bool (t, t): whether the query of a row may see the key of a column: causal, inside one document."""
        same = self.document[:, None] == self.document[None, :]
        return same & torch.ones_like(same).tril()

    def rows(self, document: int) -> slice:
        start, end = self.offsets[document : document + 2].tolist()
        return slice(start, end)

    def alone(self, document: int) -> "Pack":
        """The pack that holds this document and no other."""
        return Pack((self.lengths[document],), self.device, self.dtype)

    def without_boundaries(self) -> "Pack":
        """As many tokens in one document."""
        return Pack((self.tokens,), self.device, self.dtype)


def cumulative(lengths: Sequence[int], dtype: torch.dtype, device: str) -> Tensor:
    """The offsets of these lengths, (s + 1,)."""
    return torch.tensor([0, *lengths]).cumsum(0).to(device=device, dtype=dtype)
