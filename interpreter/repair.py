"""Triton's interpreter made trustworthy: repairs its incorrect results on CPU tensors and checks them by a self-test.

As shipped (triton 3.4 to 3.9.0) it multiplies the bit patterns of bfloat16 as integers, truncates when it rounds to
bfloat16, ignores tf32, needs a GPU to autotune, and has no libdevice. Up to 3.7 it returns the NaN in a maximum; from
3.8 on it negates the bits of bfloat16, and from 3.9 on adds them up in a running sum and compares them for an index.
The repairs replace private names of Triton. Therefore `install` tests each of them against torch, and raises if one
does not fit.
"""

import dataclasses
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.language import semantic
from triton.runtime import JITFunction
from triton.runtime import interpreter as shipped

from packproof.base.errors import PackproofError
from packproof.interpreter import (
    arguments,
    block_pointers,
    floats,
    libdevice,
    operators,
    python_calls,
    scan,
    stand_in_gpu,
    types,
)
from packproof.interpreter.batch import rewrite
from packproof.interpreter.patch import replace
from packproof.interpreter.tuning.triton_tuner import choose_configurations
from packproof.version import tried

_is_repaired = False
_is_proved = False
_failure_report = ""


def install() -> None:
    """Repair the interpreter of this process and run its self-tests (about 0.2 s); further calls do nothing.

    Call it before kernels are launched, in a process started with TRITON_INTERPRET=1.

    Raises PackproofError with Triton's version and the failed self-tests, or if TRITON_INTERPRET was set too late, or
    if Python runs without assertions.
    """
    global _is_repaired, _is_proved, _failure_report  # noqa: PLW0603
    if _is_proved:
        return
    if sys.flags.optimize:
        raise PackproofError(
            "Python runs without assertions here (-O or PYTHONOPTIMIZE), which Triton's interpreter needs for "
            "tl.device_assert: run it without"
        )
    if _failure_report:
        raise PackproofError(_failure_report)
    if not triton.knobs.runtime.interpret:
        raise PackproofError(
            "Triton's interpreter is off in this process: set TRITON_INTERPRET=1 before Triton kernels are imported"
        )
    if isinstance(tl.sum, JITFunction):  # defined when triton was imported
        raise PackproofError(
            "TRITON_INTERPRET=1 was set after triton was imported, so Triton's own functions cannot be interpreted: "
            "set it earlier, best where the process is started"
        )
    if not _is_repaired:
        _repair()
        _is_repaired = True
    from packproof.interpreter import selftest  # noqa: PLC0415  (defines kernels: only under the interpreter)

    failures = selftest.run()
    if failures:
        _failure_report = (
            f"packproof's repair of Triton's interpreter does not fit triton {triton.__version__} "
            f"with numpy {np.__version__}:\n"
            + "".join(f"    {failure}\n" for failure in failures)
            + f"    Results on CPU tensors could not be trusted. Use triton {tried('triton')}, or check on a GPU."
        )
        raise PackproofError(_failure_report)
    _self_test_batches()
    _is_proved = True


def _self_test_batches() -> None:
    """Run programs in batches if the self-test finds the same bits as one after another; else one after another."""
    from packproof.interpreter.batch import launch, selftest  # noqa: PLC0415  (defines kernels)

    launch.BatchingSanitizer.unfit_reason = reason = selftest.run()
    if reason:
        warnings.warn(f"interpreted programs run one after another, several times slower: {reason}", stacklevel=3)


def _repair() -> None:
    arguments.repair()
    types.repair()
    floats.repair()
    scan.repair()
    libdevice.repair()
    replace(shipped, "_patch_lang", _patch_language_once)
    replace(shipped.GridExecutor, "__call__", _launch_without_warnings)
    replace(shipped.GridExecutor, "_init_args_hst", _init_args_in_place)
    replace(shipped.GridExecutor, "_restore_args_dev", _skip_copy_back)
    choose_configurations()
    stand_in_gpu.repair()
    python_calls.repair()
    if hasattr(tl, "make_block_ptr"):  # up to 3.8
        block_pointers.repair()
    replace(shipped.InterpretedFunction, "rewrite", rewrite.record_source)
    # debug: device_assert fires. No overflow checks: hashes and random numbers wrap on purpose
    builder = shipped.interpreter_builder
    builder.options = dataclasses.replace(builder.options, debug=True, sanitize_overflow=False)


def _patch_language_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """Patch `triton.language` to numpy once. As shipped, each launch and each call of a device function does it."""
    original(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    tl.core.tensor.__index__ = lambda self: int(self.handle.data.item())  # numpy 2.4: no int() of a 1-d array
    tl.core.tensor.__bool__ = _truth_value
    operators.repair()
    return lambda fn: SimpleNamespace(restore=lambda: None)


def _truth_value(tensor: Any) -> bool:
    if sys._getframe(1).f_globals["__name__"] == semantic.__name__:
        return True  # `if other` tests whether one was given; as shipped, other=0 counted as none
    if tensor.handle.data.size != 1:
        shape = tuple(tensor.handle.data.shape)
        raise TypeError(f"a block of shape {shape} has no truth value: use & and | between masks, tl.where for if")
    return bool(tensor.handle.data.item())


def _launch_without_warnings(original: Callable[..., Any]) -> Callable[..., Any]:
    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            with np.errstate(all="ignore"):  # a GPU does not warn of overflow
                return original(self, *args, **kwargs)
        except shipped.InterpreterError as error:
            raise _root_cause(error) from None

    return launch


def _root_cause(error: BaseException) -> BaseException:
    """The exception raised in the kernel. The interpreter wraps it once for each device function on the stack."""
    while isinstance(error, shipped.InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _init_args_in_place(original: Callable[..., Any]) -> Callable[..., Any]:
    """Use CPU tensors in place, without a copy. Refuse other devices: the interpreter reads memory by address."""

    def init_args(self: Any, args: Any, kwargs: Any) -> Any:
        for name, value in [*zip(self.arg_names, args, strict=False), *kwargs.items()]:
            if hasattr(value, "device") and value.device.type != "cpu":
                raise ValueError(f"{name} lies on {value.device}, but Triton's interpreter works on CPU tensors")
        return args, kwargs

    return init_args


def _skip_copy_back(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, args_dev, args_hst, kwargs, kwargs_hst: None
