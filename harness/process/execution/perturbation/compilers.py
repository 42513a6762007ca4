"""Compiles kernels with pauses: those of Triton, of packproof in CUDA C++, and of torch's own NVRTC."""

# mypy: allow-untyped-calls

import hashlib
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
            compilers.enter_context(_triton_stages(seed))
        yield


@cache
def _pauses_of(seed: int) -> Callable[[str], str]:
    """One object for each seed: it is part of the key under which kernels are kept."""
    return partial(with_pauses, seed=seed)


@contextmanager
def _triton_stages(seed: int) -> Iterator[None]:
    """Triton's stage that makes PTX changes it. The stages' key is part of the key of each compiled kernel."""
    from triton import knobs  # noqa: PLC0415  (a kernel's process has it only if its kernel needs it)

    earlier_hook, pauses, key = knobs.runtime.add_stages_inspection_hook, _pauses_of(seed), f"packproof-pauses-{seed}"

    def hook(backend: Any = None, stages: Any = None, *arguments: Any) -> tuple[str, str] | None:
        if stages is None:
            text = key + (earlier_hook()[0] if earlier_hook else "")
            return text, hashlib.sha256(text.encode()).hexdigest()
        if earlier_hook:
            earlier_hook(backend, stages, *arguments)
        make_ptx = stages.get("ptx")
        if make_ptx is not None:
            stages["ptx"] = lambda source, metadata: pauses(make_ptx(source, metadata))
        return None

    with patch.object(knobs.runtime, "add_stages_inspection_hook", hook):
        yield
