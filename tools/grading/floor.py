"""The least time of a call: that in which this machine moves its bytes, or makes its products.

Functions that a worker runs as it runs kernels, so that the same clock times both.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from packproof.base.machine import available_cores

_FLOAT = 4  # bytes
_PRODUCT_DTYPE = torch.bfloat16  # the fastest that every GPU of today has
KINDS = ("copy", "fill", "sum")  # a kernel may write more than it reads, or read more than it writes


def move(x: Tensor, *, cu_seqlens: Tensor, kind: str, amount: int) -> Tensor:  # noqa: ARG001  (each call has offsets)
    """Move `amount` bytes by a copy, a fill or a sum, or make `amount` operations by a product. Returns x."""
    _prepared(kind, amount, x.device.type)()
    return x


@cache
def _prepared(kind: str, amount: int, device: str) -> Callable[[], object]:
    """The work, with its memory allocated."""
    if kind == "product":
        n = max(round((amount / 2) ** (1 / 3)), 1)
        matrix, product = (torch.ones(n, n, device=device, dtype=_PRODUCT_DTYPE) for _ in range(2))
        return lambda: torch.mm(matrix, matrix, out=product)
    count = math.ceil(amount / _FLOAT / (2 if kind == "copy" else 1))
    source = torch.ones(count, device=device)
    if kind == "copy":
        target = torch.empty_like(source)
        return lambda: target.copy_(source)
    return source.sum if kind == "sum" else lambda: source.fill_(1.0)


def cores_of(device: str) -> int:
    """How many times faster than `move` a kernel may be: it may use all cores of a CPU, and `move` uses one."""
    return available_cores() if device == "cpu" else 1
