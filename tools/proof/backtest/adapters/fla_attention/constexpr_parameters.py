"""Kernels that a later Triton refuses for their declaration alone."""

import sys
from functools import cache
from types import ModuleType
from typing import Any


@cache
def let_specialize(package: ModuleType) -> None:
    """Drop constexpr parameters from `do_not_specialize`, in all Triton kernels of a package.

    They have no effect there. Triton ignored them up to 3.2, and since then raises a CompilationError.
    """
    names = [name for name in sys.modules if name.startswith(f"{package.__name__}.")]
    for module in (sys.modules[name] for name in names):
        for kernel in vars(module).values():
            for parameter in _parameters(kernel):
                if parameter.is_constexpr:
                    parameter.do_not_specialize = parameter.do_not_specialize_on_alignment = False


def _parameters(kernel: object) -> list[Any]:
    """The KernelParams of the function within autotuners and heuristics; [] for no kernel, or an interpreted one."""
    while kernel is not None and not hasattr(kernel, "params"):
        kernel = getattr(kernel, "fn", None)
    parameters = getattr(kernel, "params", None)
    return parameters if isinstance(parameters, list) else []
