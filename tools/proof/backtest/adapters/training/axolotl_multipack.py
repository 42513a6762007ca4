"""axolotl's sampler of packs, as a packer: one rank, one pack in each batch."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Its documents are packed by default. Without numba they are packed the same, in more time."""
    if "numba" not in sys.modules and find_spec("numba") is None:
        sys.modules["numba"] = _uncompiled()
    make = import_module("axolotl.utils.samplers.multipack").MultipackBatchSampler
    sampler = make(range(len(lengths)), 1, capacity, numpy.array(lengths, dtype=numpy.int32))
    return [[int(document) for document in pack] for (pack,) in sampler]


def _uncompiled() -> Any:
    numba: Any = ModuleType("numba")
    numba.njit = lambda function: function
    return numba
