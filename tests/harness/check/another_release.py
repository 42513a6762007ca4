"""A kernel of y = x * weight in a process that has an autotuner with other names than packproof knows."""

# mypy: allow-untyped-defs

import sys
from types import ModuleType

import packproof

sys.modules["quack.autotuner"] = ModuleType("quack.autotuner")


@packproof.kernel(gradients=False)
def beside_another_release(x, weight, *, cu_seqlens):
    return x * weight
