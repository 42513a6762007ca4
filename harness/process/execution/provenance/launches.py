"""Sees each launch of a Triton kernel, and of a CUDA kernel through NVIDIA's cuda.core, and can leave it out.

On a CPU a launch is one of the interpreter's grids. On a GPU it goes through `JITFunction.run`; one of a kernel that
was compiled ahead calls Triton's hook alone, which cannot stop it.
"""

# mypy: allow-untyped-calls

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from packproof.base.importing import TARGET_PREFIX
from packproof.interpreter import is_interpreting

_CUDA_CORE = "cuda.core"

Decide = Callable[[str, str, str], bool]
"""Called with the kind of a launch, the kernel's name and its file. Returns whether the launch goes ahead."""


@contextmanager
def watch_launches(decide: Decide) -> Iterator[None]:
    """Ask `decide` before each launch, in any thread."""
    with ExitStack() as patches:
        if "triton" in sys.modules:
            (_watch_grids if is_interpreting() else _watch_triton)(patches, decide)
        if _CUDA_CORE in sys.modules:
            _watch_cuda_core(patches, decide)
        yield


def _watch_grids(patches: ExitStack, decide: Decide) -> None:
    from triton.runtime import interpreter as shipped  # noqa: PLC0415

    from packproof.interpreter.patch import temporary_replacement  # noqa: PLC0415  (needs triton)

    def watched(launch: Callable[..., Any]) -> Callable[..., Any]:
        def launch_if_decided(executor: Any, *args: Any, **kwargs: Any) -> Any:
            return launch(executor, *args, **kwargs) if decide("triton", *_named(executor.fn)) else None

        return launch_if_decided

    patches.enter_context(temporary_replacement(shipped.GridExecutor, "__call__", watched))


def _watch_triton(patches: ExitStack, decide: Decide) -> None:
    import triton  # noqa: PLC0415
    from triton.runtime.jit import JITFunction  # noqa: PLC0415

    from packproof.interpreter.patch import temporary_replacement  # noqa: PLC0415  (needs triton)

    inside = threading.local()

    def watched(run: Callable[..., Any]) -> Callable[..., Any]:
        def run_if_decided(function: Any, *args: Any, **kwargs: Any) -> Any:
            if not (kwargs.get("warmup") or decide("triton", *_named(function.fn))):
                return None
            inside.launch = True
            try:
                return run(function, *args, **kwargs)
            finally:
                inside.launch = False

        return run_if_decided

    def of_compiled_kernel(metadata: Any) -> None:
        if not getattr(inside, "launch", False):
            decide("triton", str(metadata.get()["name"]), "")

    patches.enter_context(temporary_replacement(JITFunction, "run", watched))
    hooks = triton.knobs.runtime.launch_enter_hook
    hooks.add(of_compiled_kernel)
    patches.callback(hooks.remove, of_compiled_kernel)


def _watch_cuda_core(patches: ExitStack, decide: Decide) -> None:
    """A module that imported the function by name before is not seen: packproof's own import it at each launch."""
    module: Any = sys.modules[_CUDA_CORE]
    launch = module.launch

    def launch_if_decided(stream: Any, config: Any, kernel: Any, *args: Any) -> Any:
        frame = sys._getframe(1)
        file = frame.f_code.co_filename
        name = getattr(kernel, "name", "") or f"{Path(file).name}:{frame.f_lineno}"
        return launch(stream, config, kernel, *args) if decide("cuda", str(name), file) else None

    module.launch = launch_if_decided
    patches.callback(setattr, module, "launch", launch)


def _named(function: Any) -> tuple[str, str]:
    """The name of a kernel with its module, and its file."""
    module = function.__module__.removeprefix(TARGET_PREFIX)
    return f"{module}.{function.__name__}", function.__code__.co_filename
