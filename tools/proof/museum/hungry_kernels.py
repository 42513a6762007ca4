"""Kernels that take all memory or all processes there are: for a control group in a throwaway root only."""

import os

import torch
from torch import Tensor

from packproof.museum.rogues import require_throwaway_root, running_sum

_PIECE = 1 << 28  # bytes


def takes_all_memory(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Piece after piece, each written."""
    require_throwaway_root()
    pieces = []
    while len(x) > 1:
        pieces.append(torch.ones(_PIECE, dtype=torch.uint8))
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def starts_all_processes(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Each one starts others."""
    require_throwaway_root()
    while len(x) > 1:
        os.fork()
    return running_sum(x, weight, cu_seqlens=cu_seqlens)


def starts_all_sessions(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Each one starts others, out of reach of a signal to its group."""
    require_throwaway_root()
    while len(x) > 1:
        if os.fork() == 0:
            os.setsid()
    return running_sum(x, weight, cu_seqlens=cu_seqlens)
