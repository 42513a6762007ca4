"""Sees each launch of a Triton kernel, and of a CUDA kernel through NVIDIA's cuda.core, and can leave it out."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from packproof.interpreter import watch_launches as watch_triton_launches

_CUDA_CORE = "cuda.core"

Decide = Callable[[Literal["triton", "cuda"], str, str], bool]
"""Called with the kind of a launch, the kernel's name and its file. Returns whether the launch goes ahead."""


@contextmanager
def watch_launches(decide: Decide) -> Iterator[None]:
    """Ask `decide` before each launch, in any thread."""
    with watch_triton_launches(partial(decide, "triton")), _watch_cuda_core(partial(decide, "cuda")):
        yield


@contextmanager
def _watch_cuda_core(decide: Callable[[str, str], bool]) -> Iterator[None]:
    """A module that imported the function by name before is not seen: packproof's own import it at each launch."""
    module: Any = sys.modules.get(_CUDA_CORE)
    if module is None:
        yield
        return
    launch = module.launch

    def launch_if_decided(stream: Any, config: Any, kernel: Any, *args: Any) -> Any:
        frame = sys._getframe(1)
        file = frame.f_code.co_filename
        name = getattr(kernel, "name", "") or f"{Path(file).name}:{frame.f_lineno}"
        return launch(stream, config, kernel, *args) if decide(str(name), file) else None

    module.launch = launch_if_decided
    try:
        yield
    finally:
        module.launch = launch
