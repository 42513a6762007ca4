"""Classifies exceptions in a kernel's call: faults of the kernel, its launch or the device, and lack of memory."""

import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from errno import EROFS
from importlib.util import find_spec
from pathlib import Path

import torch

from packproof.base.errors import KernelFault, OutsideConvention
from packproof.harness.process.execution.compiler_errors import calls_registered_operators, is_compiler_error
from packproof.harness.process.execution.device import Device
from packproof.harness.process.execution.invocation import BACKWARD, Invocation
from packproof.harness.process.execution.refusals import (
    ComputationWatch,
    holds_packproof_functions,
    is_contradiction,
    is_foreign_file,
    is_raised_by_adapter,
    passed_kernel,
    raising_statement,
    refuses,
)
from packproof.interpreter import UnfitInterpreterError
from packproof.properties.calling import Call, FailedCompilation, MachineLimit, MissingModule, OutsideDomain, Refusal
from packproof.properties.declarations import refusal_texts

_MAX_MESSAGE = 1000
# errors of CUDA, Triton and cuda.core for a grid, a block or shared memory that the device does not accept
_LAUNCH_ERROR = re.compile(
    r"invalid configuration argument|too many resources requested for launch|Triton Error \[CUDA\]: invalid argument"
    r"|CUDA error: invalid argument|CUDA_ERROR_INVALID_VALUE|CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES|^out of resource:"
)
_OUT_OF_MEMORY_ADVICE = re.compile(
    r"(CUDA out of memory. Tried to allocate [^.]*\.\d+ \w+)\. .*?(?= \([\w.]+:\d+\)$|$)"
)
_NO_GPU_MEMORY = re.compile(
    r"CUDA (driver )?error: out of memory|Triton Error \[CUDA\]: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
)
_NO_MEMORY = re.compile(f"{_NO_GPU_MEMORY.pattern}|DefaultCPUAllocator: can't allocate")
_REQUESTED_SIZE = re.compile(r"Tried to allocate ([\d.]+) (\w+)\.")
_BYTES_PER_UNIT = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# errors that no CUDA context survives
_LOST_CONTEXT = re.compile(
    r"illegal memory access|misaligned address|illegal instruction|unspecified launch failure|device-side assert"
    r"|CUDA_ERROR_ILLEGAL_ADDRESS|CUDA_ERROR_MISALIGNED_ADDRESS|CUDA_ERROR_LAUNCH_FAILED"
)
_LATE_REFUSAL_HINT = (
    "\n    it had computed before, or does not raise this again for the same call: a kernel declines a call by "
    "checking its arguments first"
)
_CONTRADICTION_HINT = "\n    the kernel's own code made this call, of arguments that contradict each other"
_CONVENTION_HINT = "\n    only packproof's adapters may raise this: a kernel declines a call by a NotImplementedError"
_READ_ONLY_HINT = "\n    a kernel writes to its temporary directory or its home only, unless --no-isolate is given"
# a larger request is the kernel's fault, not the machine's
_MAX_MEMORY_FACTOR = 64  # times the bytes of a call
_BYTES_PER_PAIR = 128  # of tokens: attention as written in the paper has scores and probabilities of each head


def classify_error(
    error: Exception,
    invocation: Invocation,
    n_bytes: int,
    repeat: Callable[[ComputationWatch], None],
    device: Device | None = None,
) -> KernelFault | Refusal:
    """The exception to raise for an exception of a call.

    n_bytes: the bytes of the call's own tensors.
    repeat: runs the call again, see `refusals.refuses`.
    device: the device of the invocation, unless given.
    """
    stage, device = invocation.stage, device or Device(invocation.device)
    causes = list(_causes(error))
    if fault := _immediate_fault(stage, causes):
        return fault
    if device_error := _device_error(causes, device):
        return KernelFault("crashed", f"{stage}{device_error}{_kernel_line(error)}")
    device.take_error()
    text = f"{stage}{_full_text(error)}"
    if any(map(lacks_memory, causes)):
        return _memory_fault(_OUT_OF_MEMORY_ADVICE.sub(r"\1", text), causes, invocation.call, n_bytes, device)
    is_declared = any(phrase in str(error) for phrase in refusal_texts(invocation.function))
    if invocation.call.mode == "compiled" and not is_declared and is_compiler_error(causes):
        return _compiler_fault(text, invocation)
    if is_declared or _is_refusal(error, invocation, repeat):
        return Refusal(text, backward=stage == BACKWARD)
    return _kernel_fault(error, causes, text)


def loses_the_device(error: BaseException) -> bool:
    """Whether no process that met this error can use its GPU any more."""
    return any(_LOST_CONTEXT.search(str(cause)) for cause in _causes(error))


def _compiler_fault(text: str, invocation: Invocation) -> KernelFault | FailedCompilation:
    if not calls_registered_operators(invocation):
        return FailedCompilation(text)
    promise = "it calls operators that are registered with torch, which promises that it can be compiled"
    return KernelFault("raised", f"{text}\n    {promise}")


def _kernel_fault(error: Exception, causes: Iterable[BaseException], text: str) -> KernelFault:
    if any(_LAUNCH_ERROR.search(str(cause)) for cause in causes):
        return KernelFault("launch", f"the device refused a launch: {text}")
    return KernelFault("raised", text + _hint(error))


def _hint(error: Exception) -> str:
    """A further line of the fault, which tells what the author can do."""
    if isinstance(error, NotImplementedError):
        return _LATE_REFUSAL_HINT
    if isinstance(error, OSError) and error.errno == EROFS:
        return _READ_ONLY_HINT
    return _CONTRADICTION_HINT if is_contradiction(error) else ""


def _is_refusal(error: Exception, invocation: Invocation, repeat: Callable[[ComputationWatch], None]) -> bool:
    if invocation.call.mode != "eager":
        return isinstance(error, NotImplementedError)
    return refuses(error, invocation.call, repeat, backward=invocation.stage == BACKWARD)


def _requested_bytes(causes: Iterable[BaseException], device: Device) -> int | None:
    """The bytes that a call held and requested when the GPU ran out; None unless an allocator reports it.

    The memory free afterwards proves nothing: other processes use the same GPU and have released theirs.
    """
    for cause in causes:
        request = _REQUESTED_SIZE.search(str(cause))
        if isinstance(cause, torch.OutOfMemoryError) and request and device.has_refused_memory():
            return device.allocated_bytes() + int(float(request[1]) * _BYTES_PER_UNIT[request[2]])
        if _NO_GPU_MEMORY.search(str(cause)):
            return device.allocated_bytes()
    return None


def _memory_fault(
    text: str, causes: Iterable[BaseException], call: Call, n_bytes: int, device: Device
) -> KernelFault | MachineLimit:
    """A limit of the machine; a fault of the kernel if far more memory is free than a call of this size needs."""
    if device.kind == "cuda" and (needed_bytes := _requested_bytes(causes, device)) is not None:
        return MachineLimit(f"needs more than {needed_bytes / 1e9:.1f} GB of GPU memory: {text}")
    free = device.free_bytes()
    n_pairs = max(int(offsets[-1]) for offsets in call.metadata.values()) ** 2
    if free is None or free <= _MAX_MEMORY_FACTOR * n_bytes + _BYTES_PER_PAIR * n_pairs + (1 << 30):
        return MachineLimit(text)
    return KernelFault("raised", f"{text}\n    the tensors of this call take {n_bytes:,} bytes, and {free:,} are free")


def _device_error(causes: Iterable[BaseException], device: Device) -> str:
    """The error of a device that accepts no more work, in one line; "" if it still accepts work."""
    errors = [str(cause) for cause in causes if _LOST_CONTEXT.search(str(cause))]
    try:
        device.synchronise()
    except RuntimeError as error:
        if not _NO_GPU_MEMORY.search(str(error)):  # reported late, by a launch that needs local memory
            errors.insert(0, str(error))
    return errors[0].partition("\n")[0] if errors else ""


def _immediate_fault(stage: str, causes: Iterable[BaseException]) -> KernelFault | OutsideDomain | MissingModule | None:
    """The verdict for causes that need no further test.

    These are a fault raised earlier, a pack outside the adapter's convention, a kernel that claims one, an import of a
    package that is not installed, or an exception with an unreadable text.
    """
    for cause in causes:
        if isinstance(cause, UnfitInterpreterError):
            raise cause  # packproof cannot judge it
        if isinstance(cause, KernelFault):
            return cause
        if not _has_readable_text(cause):
            return KernelFault("raised", f"{stage}{type(cause).__name__} whose message cannot be read")
        if isinstance(cause, ModuleNotFoundError) and (package := _missing_package(cause)):
            return MissingModule(f"module {package} is not installed{_kernel_line(cause)}")
        if isinstance(cause, OutsideConvention):
            if not is_raised_by_adapter(cause):
                return KernelFault("raised", f"{stage}{_full_text(cause)}{_CONVENTION_HINT}")
            if not passed_kernel(cause):  # else the kernel chose what it gave the adapter: it declines like any other
                return OutsideDomain(f"{stage}{cause}")
    return None


def _missing_package(error: ModuleNotFoundError) -> str:
    """The package to install, "" if it is there without that module: the kernel was written for another release."""
    package = (error.name or "").partition(".")[0]
    return package if package and package not in sys.modules and find_spec(package) is None else ""


def lacks_memory(cause: BaseException) -> bool:
    """Whether an exception reports, in the words of torch, Triton or CUDA, an exhausted memory."""
    return isinstance(cause, torch.OutOfMemoryError | MemoryError) or bool(_NO_MEMORY.search(str(cause)))


def _has_readable_text(error: BaseException) -> bool:
    """Whether the error's text can be read: its `__str__` may be the kernel's code."""
    try:
        return isinstance(str(error), str)
    except Exception:
        return False


def _full_text(error: Exception) -> str:
    """Kind and first line, the kernel's line that raised it, the other lines indented."""
    text = str(error) or (raising_statement(error) or "").partition("\n")[0]
    headline, *details = f"{type(error).__name__}: {text}"[:_MAX_MESSAGE].splitlines()
    return f"{headline}{_kernel_line(error)}" + "".join(f"\n    {line}" for line in details if line.strip())


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes: Triton's interpreter and autograd wrap the errors they pass on."""
    seen: list[BaseException] = []  # circular for an error unwrapped by the interpreter: its context has it as cause
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        yield cause
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__


def _kernel_line(error: BaseException) -> str:
    """The last line of the kernel's own code on the traceback, as " (file.py:12)"."""
    callers = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_foreign_file(frame.filename)]
    if is_contradiction(error):  # raised inside packproof's functions: report their caller
        callers = [frame for frame in callers if not holds_packproof_functions(frame.filename)] or callers
    return f" ({Path(callers[-1].filename).name}:{callers[-1].lineno})" if callers else ""
