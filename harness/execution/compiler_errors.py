"""Whether an exception under torch.compile is the compiler's own, and not from the kernel's code.

It is the compiler's where it comes from torch's compiler, or from generated code, and passes through none of the
kernel's code on the way: a fake implementation, a gradient's formula or an operator that fails there is the kernel's.
"""

import os
import traceback
from collections.abc import Iterable
from contextlib import suppress

from packproof.harness.execution.invocation import Invocation
from packproof.harness.execution.operators import Operators
from packproof.harness.execution.refusals import foreign

_COMPILER = tuple(f"{os.sep}torch{os.sep}{part}{os.sep}" for part in ("_dynamo", "_inductor", "_functorch"))
_CALLS = f"{os.sep}torch{os.sep}_dynamo{os.sep}eval_frame.py"  # calls a function, compiled or not
_GENERATED = "torchinductor_"  # in the path of Inductor's code
_COMPILED = "<eval_with_key>"  # a graph


def is_of_the_compiler(causes: Iterable[BaseException]) -> bool:
    """Whether an error, with what it was raised from, is one of torch's compiler alone."""
    errors = list(causes)
    return any(map(_in_compiler, errors)) and not any(map(_in_kernel, errors))


def calls_registered_operators(invocation: Invocation) -> bool:
    """Whether the call, made plainly, runs operators that are registered with torch: that is a promise to compile."""
    with Operators() as seen, suppress(Exception):  # what it raises plainly is not in question here
        invocation.backward(invocation.forward())
    return bool(seen.found)


def _in_compiler(error: BaseException) -> bool:
    kinds = {kind.__module__ for kind in type(error).__mro__}
    return bool(kinds & {"torch._dynamo.exc", "torch._inductor.exc"}) or any(map(_compiles, _files(error)))


def _in_kernel(error: BaseException) -> bool:
    """Whether the compiler, or what it has generated, called the kernel's code, which raised this or did not return.

    After a graph break the kernel's code calls the compiler again: what that raises is not the kernel's.
    """
    files = _files(error)
    last = _last(files)
    return last is not None and any(not (foreign(file) or _GENERATED in file) for file in files[last:])


def _last(files: list[str]) -> int | None:
    return next((k for k in reversed(range(len(files))) if _compiles(files[k])), None)


def _compiles(file: str) -> bool:
    inside = any(part in file for part in _COMPILER) and not file.endswith(_CALLS)
    return inside or _GENERATED in file or file.startswith(_COMPILED)


def _files(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
