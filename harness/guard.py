"""Guards around what a kernel allocates: poison in fresh buffers."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# What a fresh buffer holds, as bits: a quiet NaN with a payload that no arithmetic makes by itself, or an absurd integer.
POISON: dict[torch.dtype, int] = {
    torch.float64: 0x7FF8DEADDEADDEAD,
    torch.float32: 0x7FC0DEAD,
    torch.bfloat16: 0x7FCD,
    torch.float16: 0x7EAD,
    torch.int64: 0xDEADBEEFDEADBEEF - (1 << 64),
    torch.int32: 0xDEADBEEF - (1 << 32),
}
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def fill_poison(tensor: Tensor) -> None:
    """Overwrite `tensor` with the poison of its dtype; a dtype that has none (bool, int8, complex) stays as it is."""
    if tensor.dtype in POISON:
        tensor.detach().view(_BITS[tensor.itemsize]).fill_(POISON[tensor.dtype])


def is_poison(values: Tensor | NDArray[np.generic], dtype: torch.dtype | None = None) -> Tensor | NDArray[np.bool_]:
    """Which elements hold the poison pattern, bit for bit: booleans of the same shape, a tensor for a tensor.

    dtype: what the bits of a numpy array mean where numpy cannot say it (bfloat16 travels as uint16 or int16).
    """
    if isinstance(values, Tensor):
        if values.dtype not in POISON:
            return torch.zeros_like(values, dtype=torch.bool)
        return values.detach().view(_BITS[values.itemsize]) == POISON[values.dtype]
    if dtype is None:
        dtype = _NUMPY_MEANING.get(values.dtype)
    if dtype not in POISON:
        return np.zeros(values.shape, dtype=bool)
    bits: NDArray[np.bool_] = values.view(f"i{values.dtype.itemsize}") == POISON[dtype]
    return bits


_NUMPY_MEANING = {
    np.dtype(np.float64): torch.float64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float16): torch.float16,
    np.dtype(np.uint16): torch.bfloat16,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
}
