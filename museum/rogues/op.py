"""The op of all rogues: the running sum of each sequence, scaled by channel."""

from itertools import pairwise

import torch
from torch import Tensor

KNOWN_TOKENS = 37  # tokens in the only call of a naive harness: rogues recognize it by this number


def is_judged() -> bool:
    """Whether packproof runs a kernel in this process. Elsewhere, sockets and processes belong to others."""
    with open("/proc/self/comm") as file:
        return file.read() == "pp-zygote\n"


def running_sum(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """y_t = weight · Σ_{s ≤ t} x_s within each sequence; x (t, d), weight (d,), slack rows zero."""
    offsets = [int(n) for n in cu_seqlens]
    sums = [x[a:b].cumsum(0) for a, b in pairwise(offsets)]
    return torch.cat([*sums, torch.zeros_like(x[offsets[-1] :])]) * weight


def own_sum(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The same in code of a kernel's own: for rogues that would be reported for their call of the reference."""
    offsets = [int(n) for n in cu_seqlens]
    return torch.cat([*(x[a:b].cumsum(0) for a, b in pairwise(offsets)), torch.zeros_like(x[offsets[-1] :])]) * weight
