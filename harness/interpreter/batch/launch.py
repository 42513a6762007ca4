"""Launches with all programs together if possible, else one after another."""

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

FEW = 8  # launches of up to 8 programs run in the order asked for; larger ones only if the batch gives up
GROUPS = (1024, 128, 16)  # programs of a batch; the next size if blocks are too large

Kernel = Callable[..., Any]


class BatchingSanitizer(Sanitizer):
    """Runs the programs of a launch together, with the faults of `Sanitizer`.

    If the order is not forward, launches of up to MAX_ORDERED_PROGRAMS programs run one by one in this order.

    If a batch finds a fault, or cannot decide, the tensors are restored and the programs run one after another. Their
    result counts. A fault of the batch stands even if they do not repeat it: it does not depend on the order of
    programs.
    """

    batches = 0
    """Number of launches with all programs together."""
    unfit = ""
    """Why this process runs no batches, after a failed self-test; else ""."""
    refused: dict[Kernel, Exception] = {}  # noqa: RUF012
    """Kernels of this process that cannot run in a batch, with the reason."""

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
        result = super()._run(original, launch.executor, args, kwargs)  # raises the kernel's own fault, if any
        if isinstance(failed, KernelFault):
            self._fault = self._fault or failed
        if isinstance(failed, KernelFault | blocks.DeviceAssert):
            raise failed
        self.refused[kernel] = failed
        return result

    def _attempt(self, kernel: Kernel, launch: "_Prepared") -> Exception | None:
        """Run the programs together. Returns None on success; else the error, with the tensors restored."""
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
        """Run the programs in batches of this size."""
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
    """A launch after its hooks."""

    executor: Any
    """Triton's executor without the hooks, with this grid."""
    given: Mapping[str, Any]
    """Arguments of the caller, by name."""
    arguments: Mapping[str, Any]
    """Arguments of the programs: tensors of Triton's language."""
    grid: tuple[int, ...]
    """Number of programs for each of three axes."""
    count: int
    """Number of programs."""

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
