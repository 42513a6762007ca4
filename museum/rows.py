"""Rows of a pack, for the kernels of the museum."""

import torch
from torch import Tensor


def sequence_of_rows(offsets: Tensor, rows: Tensor, *, right: bool = True) -> Tensor:
    """The sequence of each row (t,).

    offsets: (s + 1,), from 0. Rows past the last one count as sequence s.
    right: whether a row at an offset belongs to the sequence that begins there.

    All offsets are searched, since compilers of torch search a slice such as `offsets[1:]` from the start of its base
    (pytorch#182343).
    """
    return (torch.searchsorted(offsets, rows, right=right) - 1).clamp(min=0)
