"""The runner of the debugging tools: this process, or a worker if the kernel needs Triton's interpreter."""

from collections.abc import Callable
from typing import Any

from packproof.base.errors import KernelFault, UsageError
from packproof.harness.process import Worker
from packproof.harness.process.execution import InProcess
from packproof.harness.process.naming import Location
from packproof.interpreter import is_interpreting
from packproof.properties.calling import Call, Refusal, Result

# messages of Triton without a GPU, of Triton with one, and of packproof's own kernels
_NEEDS_INTERPRETER = ("0 active drivers", "cannot be accessed from Triton", "set TRITON_INTERPRET=1")
_TIMEOUT_S = 120.0


class LocalRunner(InProcess):
    """A runner in this process, where breakpoints and prints work. Must be closed.

    A Triton kernel on CPU tensors runs in an interpreting worker, unless this process interprets Triton kernels itself
    (TRITON_INTERPRET=1). In this case the interpreter is repaired before the first call.
    """

    batches_programs = False  # one program after another, so that a breakpoint in a kernel stops in a single program

    def __init__(self, function: Callable[..., Any], device: str = "cpu", *, name: str = "") -> None:
        super().__init__(function, device)
        self._target, self._name = function, name
        self._worker: Worker | None = None

    def run(self, call: Call) -> Result:
        """Run a call. Raises KernelFault, Refusal, UsageError for a kernel that no worker can import, and
        PackproofError for an interpreter that cannot be repaired."""
        if self._worker is not None:
            return self._worker.run(call)
        if self.device == "cpu" and (self._interpreting or is_interpreting()):
            from packproof.interpreter import install  # noqa: PLC0415  (needs triton)

            install()  # as shipped it computes incorrect values
        try:
            return super().run(call)
        except (KernelFault, Refusal) as error:
            if self.device != "cpu" or not any(text in str(error) for text in _NEEDS_INTERPRETER):
                raise
        if not self._name and Location.from_function(self._target) is None:
            raise UsageError(
                "a Triton kernel on CPU tensors needs Triton's interpreter: set TRITON_INTERPRET=1 before triton is "
                "imported, or give the kernel as package.module:function or path/file.py:function"
            )
        self._worker = Worker(self._name or self._target, "cpu", _TIMEOUT_S)
        return self._worker.run(call)

    def close(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
