"""Launches whose programs run together where that is possible, and one after another where it is not."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from triton.runtime import interpreter as shipped

from packproof.harness.interpreter import arguments
from packproof.harness.interpreter.batch import blocks, rewrite, world
from packproof.harness.interpreter.batch.programs import TooLarge, programs
from packproof.harness.interpreter.batch.shadow import Shadow
from packproof.harness.interpreter.memory_map import MemoryMap, Region, regions_of
from packproof.harness.interpreter.sanitizer import Sanitizer, tensors_of
from packproof.properties.call import KernelFault

FEW = 8  # programs that run in a given order, if one is given; more of them only where a batch gives up
GROUPS = (1024, 128, 16)  # programs of a batch; the next where their blocks are too large

Kernel = Callable[..., Any]


class BatchingSanitizer(Sanitizer):
    """A sanitizer that runs the programs of a launch together, and reports what it would if they ran in order. If that
    order is not forward, a few programs run in it.

    Where a batch finds a fault, or cannot decide, the tensors are restored and the programs run one after another; what
    they do then counts. Only a fault that needs no order of the programs stands although they did not repeat it.
    `batches` counts the launches whose programs ran together; `refused` has the kernels of this process that no batch
    could run; `unfit` says why nothing runs together in it, where the self-test has failed.
    """

    batches = 0
    unfit = ""
    refused: dict[Kernel, Exception] = {}  # noqa: RUF012

    def _run(self, original: Callable[..., Any], executor: Any, args: Any, kwargs: Any) -> Any:
        kernel = rewrite.source(executor.fn)
        if self.unfit or kernel is None or kernel in self.refused or rewrite.ordered(kernel):
            return super()._run(original, executor, args, kwargs)
        launch = _prepared(executor, args, kwargs)
        if not launch.count or (self._order != "forward" and launch.count <= FEW):
            return super()._run(original, launch.executor, args, kwargs)
        failed = self._attempt(kernel, launch)
        if failed is None:
            return None
        result = super()._run(original, launch.executor, args, kwargs)  # raises what the kernel does wrong
        if isinstance(failed, KernelFault):
            self._fault = self._fault or failed
        if isinstance(failed, KernelFault | blocks.DeviceAssert):
            raise failed
        self.refused[kernel] = failed
        return result

    def _attempt(self, kernel: Kernel, launch: "_Prepared") -> Exception | None:
        """Run the programs together. What prevented it, with the tensors as they were; None where it has succeeded."""
        saved = [(elements, elements.copy()) for elements in map(Region.bits, launch.regions)]
        failed: Exception | None = None
        for size in GROUPS:
            try:
                self._together(kernel, launch, size)
            except Exception as error:  # of the kernel, or of a batch
                failed = error
            else:
                return None
            for elements, before in saved:
                elements[...] = before
            if not isinstance(failed, TooLarge):
                break
        return failed

    def _together(self, kernel: Kernel, launch: "_Prepared", size: int) -> None:
        """Run the programs in groups of a size."""
        function = rewrite.batched(kernel)
        self._launch = shadow = Shadow(kernel.__name__, MemoryMap(launch.regions), self._read_only)
        try:
            with world.entered(shadow), np.errstate(all="ignore"):
                shipped.interpreter_builder.set_grid_dim(*launch.grid)
                for first in range(0, launch.count, size):
                    programs.begin(np.arange(first, min(launch.count, first + size)), launch.grid)
                    function(**launch.arguments)
            self.batches += 1
        finally:
            self._launch = None


@dataclass(frozen=True)
class _Prepared:
    """A launch whose hooks have run: its arguments as given and as programs get them, its grid and its programs."""

    executor: Any
    given: Mapping[str, Any]
    arguments: Mapping[str, Any]
    grid: tuple[int, ...]
    count: int

    @cached_property
    def regions(self) -> list[Region]:
        return regions_of(dict(tensors_of(self.given.items())))


def _prepared(executor: Any, args: Any, kwargs: Mapping[str, Any]) -> _Prepared:
    specification = arguments.specification(executor.fn)
    known = {*specification.args, *specification.kwonlyargs}
    args, kwargs = executor._init_args_hst(args, {name: value for name, value in kwargs.items() if name in known})
    for hook in getattr(executor, "pre_run_hooks", ()):  # not in triton 3.5
        hook(*args, **kwargs)
    given = arguments.bound(executor.fn, *args, **kwargs)
    converted = {
        name: value if name in executor.constexprs else shipped._implicit_cvt(value) for name, value in given.items()
    }
    grid = tuple(executor.grid(converted) if callable(executor.grid) else executor.grid)
    again = copy.copy(executor)  # without the hooks, and with this very grid
    again.pre_run_hooks, again.grid = [], grid
    wide = tuple([int(size) for size in grid] + [1] * (3 - len(grid)))
    return _Prepared(again, given, converted, wide, math.prod(wide))
