"""Integers that hold floating-point values, as their bits or converted: to compute with them is to compute.

Other integers, such as offsets, positions and masks, are free.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import arg_tree_leaves

from packproof.harness.process.execution.provenance.arithmetic import changes_values

_CONVERTS = frozenset({"_to_copy", "view", "copy_"})  # a view has another dtype, too
_CREATES = ("new_", "empty", "full", "zeros", "ones")  # from the shape of a tensor alone


class Integers:
    """Follows them from operator to operator. Their storages are kept, so that no other one gets the same address."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}

    def compute(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether an operator computes with such integers."""
        return any(map(self._holds, _tensors(args, kwargs))) and changes_values(op, args, kwargs)

    def follow(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note the integers among the results of an operator that has run."""
        name = op.overloadpacket.__name__
        if name.startswith(_CREATES) or name.endswith("_like"):
            return
        sources = [x for x in _tensors(args, kwargs) if self._holds(x) or (name in _CONVERTS and x.is_floating_point())]
        for x in _tensors((result,), {}) if sources else ():
            if _is_number(x):
                storage = x.untyped_storage()
                self._storages[storage._cdata] = storage

    def _holds(self, x: Tensor) -> bool:
        return _is_number(x) and x.untyped_storage()._cdata in self._storages


def _is_number(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool) and x.numel() > 0


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    return (x for x in arg_tree_leaves(*args, **kwargs) if isinstance(x, Tensor))
