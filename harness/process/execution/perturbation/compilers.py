"""Compiles kernels with pauses: those of Triton, of packproof in CUDA C++, and of torch's own NVRTC."""

# mypy: allow-untyped-calls

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch

from packproof.harness.process.execution.perturbation.ptx import with_pauses
from packproof.kernels import cuda


@contextmanager
def pauses_compiled_in(seed: int) -> Iterator[None]:
    """What is launched in here has pauses, if it is compiled from PTX by Triton or by packproof.

    Kernels are compiled once for each seed. Those of an extension module run as they are.
    """
    with ExitStack() as compilers:
        compilers.enter_context(cuda.changed_ptx(_pauses_of(seed)))
        if "triton" in sys.modules:
            compilers.enter_context(_changed_triton(seed))
        yield


@cache
def _pauses_of(seed: int) -> Callable[[str], str]:
    """One object for each seed: it is part of the key under which kernels are kept."""
    return partial(with_pauses, seed=seed)


@contextmanager
def _changed_triton(seed: int) -> Iterator[None]:
    """Triton compiles with pauses, and keeps such kernels apart, on disk too: by a word in their options.

    Triton 3.5 takes that word from a launch, newer versions from a setting.
    """
    from triton import knobs  # noqa: PLC0415  (a kernel's process has it only if its kernel needs it)
    from triton.backends.nvidia.compiler import CUDABackend  # noqa: PLC0415
    from triton.runtime.jit import JITFunction  # noqa: PLC0415

    make_ptx, run, word = CUDABackend.make_ptx, JITFunction.run, f"packproof pauses {seed}"

    def with_pauses_made(backend: Any, *arguments: Any, **options: Any) -> str:
        return with_pauses(make_ptx(backend, *arguments, **options), seed)

    def run_with_word(function: Any, *arguments: Any, **options: Any) -> Any:
        return run(function, *arguments, **{**options, "instrumentation_mode": word})

    with ExitStack() as patches:
        patches.enter_context(patch.object(CUDABackend, "make_ptx", with_pauses_made))
        patches.enter_context(patch.object(JITFunction, "run", run_with_word))
        if hasattr(knobs.compilation, "instrumentation_mode"):
            patches.enter_context(patch.object(knobs.compilation, "instrumentation_mode", word))
        yield
