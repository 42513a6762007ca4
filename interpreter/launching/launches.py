"""Sees each launch of a Triton kernel, and can leave it out.

On a CPU a launch is one of the interpreter's grids. On a GPU it goes through `JITFunction.run`; one of a kernel
compiled ahead calls Triton's hook alone, which cannot stop it.
"""

# mypy: allow-untyped-calls

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from packproof.base.names import TARGET_PREFIX
from packproof.interpreter.in_use import is_interpreting

Decide = Callable[[str, str], bool]
"""Called with the name and the file of a kernel. Returns whether its launch goes ahead."""


@contextmanager
def watch_launches(decide: Decide) -> Iterator[None]:
    """Ask `decide` before each launch of a Triton kernel inside, in any thread."""
    with ExitStack() as patches:
        if "triton" in sys.modules:
            (_watch_grids if is_interpreting() else _watch_compiled)(patches, decide)
        yield


def _watch_grids(patches: ExitStack, decide: Decide) -> None:
    from triton.runtime import interpreter as shipped  # noqa: PLC0415

    from packproof.interpreter.patch import temporary_replacement  # noqa: PLC0415  (needs triton)

    def watched(launch: Callable[..., Any]) -> Callable[..., Any]:
        def launch_if_decided(executor: Any, *args: Any, **kwargs: Any) -> Any:
            return launch(executor, *args, **kwargs) if decide(*_name_and_file(executor.fn)) else None

        return launch_if_decided

    patches.enter_context(temporary_replacement(shipped.GridExecutor, "__call__", watched))


def _watch_compiled(patches: ExitStack, decide: Decide) -> None:
    import triton  # noqa: PLC0415
    from triton.runtime.jit import JITFunction  # noqa: PLC0415

    from packproof.interpreter.patch import temporary_replacement  # noqa: PLC0415  (needs triton)

    inside = threading.local()

    def watched(run: Callable[..., Any]) -> Callable[..., Any]:
        def run_if_decided(function: Any, *args: Any, **kwargs: Any) -> Any:
            if not (kwargs.get("warmup") or decide(*_name_and_file(function.fn))):
                return None
            inside.run = True
            try:
                return run(function, *args, **kwargs)
            finally:
                inside.run = False

        return run_if_decided

    def of_kernel_compiled_ahead(metadata: Any) -> None:
        if not getattr(inside, "run", False):
            decide(str(metadata.get()["name"]), "")

    patches.enter_context(temporary_replacement(JITFunction, "run", watched))
    hooks = triton.knobs.runtime.launch_enter_hook
    hooks.add(of_kernel_compiled_ahead)
    patches.callback(hooks.remove, of_kernel_compiled_ahead)


def _name_and_file(function: Any) -> tuple[str, str]:
    module = function.__module__.removeprefix(TARGET_PREFIX)
    return f"{module}.{function.__name__}", function.__code__.co_filename
