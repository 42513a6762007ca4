"""Launches with all programs together if possible, else one after another."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from triton.runtime import interpreter as shipped

from packproof.base.errors import KernelFault
from packproof.interpreter import arguments
from packproof.interpreter.batch import blocks, rewrite, world
from packproof.interpreter.batch.programs import TooLarge, programs
from packproof.interpreter.batch.shadow import Shadow
from packproof.interpreter.memory_map import MemoryMap, Region, regions_of
from packproof.interpreter.sanitizer import Sanitizer, tensors_of

Kernel = Callable[..., Any]


class BatchingSanitizer(Sanitizer):
    """Runs the programs of a launch together, with the faults of `Sanitizer`.

    If the order is not forward, launches of up to `max_ordered_programs` programs run one by one in this order.

    If a batch finds a fault, or cannot decide, the tensors are restored and the programs run one after another. Their
    result counts. A fault of the batch stands even if they do not repeat it: it does not depend on the order of
    programs.
    """

    max_ordered_programs = 8
    """Launches of up to so many programs run in the order asked for; larger ones only if the batch gives up."""
    batch_sizes: tuple[int, ...] = (1024, 128, 16)
    """Programs of a batch; the next size if blocks are too large."""
    batches = 0
    """Number of launches with all programs together."""
    unfit_reason = ""
    """Why this process runs no batches, after a failed self-test; else ""."""
    unsupported_kernels: dict[Kernel, Exception] = {}  # noqa: RUF012
    """Kernels of this process that cannot run in a batch, with the reason."""

    def _run(self, original: Callable[..., Any], executor: Any, args: Any, kwargs: Any) -> Any:
        kernel = rewrite.source(executor.fn)
        if (
            self.unfit_reason
            or kernel is None
            or kernel in self.unsupported_kernels
            or rewrite.shows_program_order(kernel)
        ):
            return super()._run(original, executor, args, kwargs)
        launch = _prepare_launch(executor, args, kwargs)
        if not launch.count or (self._order != "forward" and launch.count <= self.max_ordered_programs):
            return super()._run(original, launch.executor, args, kwargs)
        failure = self._attempt_batches(kernel, launch)
        if failure is None:
            return None
        result = super()._run(original, launch.executor, args, kwargs)  # raises the kernel's own fault, if any
        if isinstance(failure, KernelFault):
            self._fault = self._fault or failure
        if isinstance(failure, KernelFault | blocks.DeviceAssert):
            raise failure
        self.unsupported_kernels[kernel] = failure
        return result

    def _attempt_batches(self, kernel: Kernel, launch: "_PreparedLaunch") -> Exception | None:
        """Run the programs together. Returns None on success; else the error, with the tensors restored."""
        backups = [(elements, elements.copy()) for elements in map(Region.bits, launch.regions)]
        failure: Exception | None = None
        for size in self.batch_sizes:
            try:
                self._run_batches(kernel, launch, size)
            except Exception as error:  # of the kernel, or of a batch
                failure = error
            else:
                return None
            for elements, backup in backups:
                elements[...] = backup
            if not isinstance(failure, TooLarge):
                break
        return failure

    def _run_batches(self, kernel: Kernel, launch: "_PreparedLaunch", size: int) -> None:
        """Run the programs in batches of this size."""
        function = rewrite.batch_function(kernel)
        memory = MemoryMap(launch.regions)
        self._launch = shadow = Shadow(kernel.__name__, memory, self._read_only, self._loads_unwritten_floats)
        try:
            with world.batch_mode(shadow), np.errstate(all="ignore"):
                shipped.interpreter_builder.set_grid_dim(*launch.grid)
                for start in range(0, launch.count, size):
                    programs.begin(np.arange(start, min(launch.count, start + size)), launch.grid)
                    function(**launch.arguments)
            self.batches += 1
        finally:
            self._launch = None


@dataclass(frozen=True)
class _PreparedLaunch:
    """A launch after its hooks."""

    executor: Any
    """Triton's executor without the hooks, with this grid."""
    original_arguments: Mapping[str, Any]
    """Arguments of the caller, by name."""
    arguments: Mapping[str, Any]
    """Arguments of the programs: tensors of Triton's language."""
    grid: tuple[int, ...]
    """Number of programs for each of three axes."""
    count: int
    """Number of programs."""

    @cached_property
    def regions(self) -> list[Region]:
        return regions_of(dict(tensors_of(self.original_arguments.items())))


def _prepare_launch(executor: Any, args: Any, kwargs: Mapping[str, Any]) -> _PreparedLaunch:
    spec = arguments.full_arg_spec(executor.fn)
    parameter_names = {*spec.args, *spec.kwonlyargs}
    args, kwargs = executor._init_args_hst(
        args, {name: value for name, value in kwargs.items() if name in parameter_names}
    )
    for hook in getattr(executor, "pre_run_hooks", ()):  # not in triton 3.5
        hook(*args, **kwargs)
    original_arguments = arguments.call_arguments(executor.fn, *args, **kwargs)
    converted = {
        name: value if name in executor.constexprs else shipped._implicit_cvt(value)
        for name, value in original_arguments.items()
    }
    grid = tuple(executor.grid(converted) if callable(executor.grid) else executor.grid)
    fresh_executor = copy.copy(executor)  # without the hooks, and with this very grid
    fresh_executor.pre_run_hooks, fresh_executor.grid = [], grid
    grid_3d = tuple([int(size) for size in grid] + [1] * (3 - len(grid)))
    return _PreparedLaunch(fresh_executor, original_arguments, converted, grid_3d, math.prod(grid_3d))
