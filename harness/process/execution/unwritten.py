"""Whether floats that a kernel loads, but never wrote, reach its results.

A kernel may load a whole block of which it wrote a part, and select its part by `tl.where`: what it discards does not
matter. Its call is repeated with other values in fresh memory, and has to give the same bits.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from packproof.base.errors import KernelFault, UnwrittenReadError
from packproof.interpreter import is_poison
from packproof.properties.calling import Refusal, Result

_OTHER_FILLS = (1024.0, -1024.0)
"""Beside NaN, which a maximum drops, and which is on neither side of a comparison."""


def require_unused(fault: UnwrittenReadError, call: Callable[[float], Result]) -> Result:
    """The result of the call if it is the same whatever lies in fresh memory. Raises `fault` otherwise.

    call: makes the call, with this value in fresh memory; with NaN it is the poison, as ever.
    """
    try:
        result = call(math.nan)
        is_unused = all(_agree(result, call(fill), fill) for fill in _OTHER_FILLS)
    except (KernelFault, Refusal):
        raise fault from None
    if not is_unused:
        raise fault
    return result


def _agree(poisoned: Result, filled: Result, fill: float) -> bool:
    """Whether two results have the same bits, but for elements that no one wrote: those are judged as such."""
    pairs = ((poisoned.outputs, filled.outputs), (poisoned.gradients, filled.gradients))
    return all(_same_where_written(first, second, fill) for first, second in pairs)


def _same_where_written(poisoned: Mapping[str, Tensor], filled: Mapping[str, Tensor], fill: float) -> bool:
    if poisoned.keys() != filled.keys():
        return False
    for name, x in poisoned.items():
        y = filled[name]
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
        is_unwritten = torch.as_tensor(is_poison(x)) & (y == fill)
        if not ((x == y) | (x.isnan() & y.isnan()) | is_unwritten).all():
            return False
    return True
