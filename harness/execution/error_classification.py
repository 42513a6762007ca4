"""Classifies exceptions in a kernel's call: faults of the kernel, its launch or the device, and lack of memory."""

import re
import resource
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

from packproof.harness.execution.compiler_errors import calls_registered_operators, is_of_the_compiler
from packproof.harness.execution.invocation import BACKWARD, Invocation, synchronise
from packproof.harness.execution.refusals import (
    Computing,
    checks_arguments,
    contradicts_itself,
    foreign,
    own_statement,
    refuses,
)
from packproof.harness.interpreter.in_use import UnfitInterpreterError
from packproof.properties.call import KernelFault, MachineLimit, NotCompiled, OutsideDomain, Refused
from packproof.properties.declaration import refusals
from packproof.refs.errors import OutsideConvention

_MAX_MESSAGE = 1000
# errors of CUDA, Triton and cuda.core for a grid, a block or shared memory that the device does not accept
_LAUNCH = re.compile(
    r"invalid configuration argument|too many resources requested for launch|Triton Error \[CUDA\]: invalid argument"
    r"|CUDA error: invalid argument|CUDA_ERROR_INVALID_VALUE|CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES|^out of resource:"
)
_FULL_OF_ADVICE = re.compile(r"(CUDA out of memory. Tried to allocate [^.]*\.\d+ \w+)\. .*?(?= \([\w.]+:\d+\)$|$)")
_NO_GPU_MEMORY = re.compile(
    r"CUDA (driver )?error: out of memory|Triton Error \[CUDA\]: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
)
_NO_MEMORY = re.compile(f"{_NO_GPU_MEMORY.pattern}|DefaultCPUAllocator: can't allocate")
_ASKED = re.compile(r"Tried to allocate ([\d.]+) (\w+)\.")
_BYTES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# errors that no CUDA context survives
_LOST = re.compile(
    r"illegal memory access|misaligned address|illegal instruction|unspecified launch failure|device-side assert"
    r"|CUDA_ERROR_ILLEGAL_ADDRESS|CUDA_ERROR_MISALIGNED_ADDRESS|CUDA_ERROR_LAUNCH_FAILED"
)
_LATE = (
    "\n    it had computed before, or does not raise this again for the same call: a kernel declines a call by "
    "checking its arguments first"
)
_OWN_ARGUMENTS = "\n    the kernel's own code made this call, of arguments that contradict each other"
_MODEST = 64  # times the bytes of a call; a larger request is the kernel's fault, not the machine's


def verdict_on(
    error: Exception, invocation: Invocation, n_bytes: int, again: Callable[[Computing], None]
) -> KernelFault | Refused:
    """The exception to raise for an exception of a call.

    n_bytes: the bytes of the call's own tensors.
    repeat: runs the call again, see `refusals.refuses`.
    """
    stage, device = invocation.stage, invocation.device
    causes = list(_causes(error))
    if own := _at_once(stage, causes):
        return own
    if lost := _device_error(causes, device):
        return KernelFault("crashed", f"{stage}{lost}{_line_of(error)}")
    text = f"{stage}{_in_full(error)}"
    if any(map(lacks_memory, causes)):
        return _without_memory(_FULL_OF_ADVICE.sub(r"\1", text), causes, n_bytes, device)
    declared = any(words in str(error) for words in refusals(invocation.function))
    if invocation.call.mode == "compiled" and not declared and is_of_the_compiler(causes):
        return _of_the_compiler(text, invocation)
    if declared or _declined(error, invocation, again):
        return Refused(text, backward=stage == BACKWARD)
    return _of_the_kernel(error, causes, text)


def _of_the_compiler(text: str, invocation: Invocation) -> KernelFault | NotCompiled:
    if not calls_registered_operators(invocation):
        return NotCompiled(text)
    promise = "it calls operators that are registered with torch, which promises that it can be compiled"
    return KernelFault("raised", f"{text}\n    {promise}")


def _of_the_kernel(error: Exception, causes: Iterable[BaseException], text: str) -> KernelFault:
    if any(_LAUNCH.search(str(cause)) for cause in causes):
        return KernelFault("launch", f"the device refused a launch: {text}")
    way_out = _LATE if isinstance(error, NotImplementedError) else _OWN_ARGUMENTS if contradicts_itself(error) else ""
    return KernelFault("raised", text + way_out)


def _declined(error: Exception, invocation: Invocation, again: Callable[[Computing], None]) -> bool:
    if invocation.call.mode != "eager":
        return isinstance(error, NotImplementedError)
    return refuses(error, invocation.call, again, backward=invocation.stage == BACKWARD)


def _on_the_way(causes: Iterable[BaseException], device: torch.device) -> int | None:
    """The bytes that a call held and requested when the GPU ran out; None unless an allocator reports it.

    The memory free afterwards proves nothing: other processes use the same GPU and have released theirs.
    """
    for cause in causes:
        asked = _ASKED.search(str(cause))
        if isinstance(cause, torch.OutOfMemoryError) and asked and torch.cuda.memory_stats(device).get("num_ooms"):
            return torch.cuda.memory_allocated(device) + int(float(asked[1]) * _BYTES[asked[2]])
        if _NO_GPU_MEMORY.search(str(cause)):
            return torch.cuda.memory_allocated(device)
    return None


def _without_memory(
    text: str, causes: Iterable[BaseException], n_bytes: int, device: torch.device
) -> KernelFault | MachineLimit:
    """A limit of the machine; a fault of the kernel if far more memory is free than a call of this size needs."""
    if device.type == "cuda" and (used := _on_the_way(causes, device)) is not None:
        return MachineLimit(f"needs more than {used / 1e9:.1f} GB of GPU memory: {text}")
    free = free_bytes(device)
    if free is None or free <= _MODEST * n_bytes + (1 << 30):
        return MachineLimit(text)
    return KernelFault("raised", f"{text}\n    the tensors of this call take {n_bytes:,} bytes, and {free:,} are free")


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a device, including what torch keeps for reuse; None for a device that does not report it."""
    if device.type == "cpu":
        return _free_on_host()
    if device.type != "cuda":
        return None
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + kept


def _free_on_host() -> int:
    """Free memory of the system, within the limit of this process (`ulimit -v`)."""
    available = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    free = int(available[1]) * 1024 if available else sys.maxsize
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return free
    return min(free, limit - int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize())


def _device_error(causes: Iterable[BaseException], device: torch.device) -> str:
    """The error of a device that accepts no more work, in one line; "" if it still accepts work."""
    errors = [str(cause) for cause in causes if _LOST.search(str(cause))]
    try:
        synchronise(device)
    except RuntimeError as error:
        if not _NO_GPU_MEMORY.search(str(error)):  # reported late, by a launch that needs local memory
            errors.insert(0, str(error))
    return errors[0].partition("\n")[0] if errors else ""


def _at_once(stage: str, causes: Iterable[BaseException]) -> KernelFault | OutsideDomain | None:
    """The verdict for causes that need no further test.

    These are a fault raised earlier, a pack outside the adapter's convention, or an exception with an unreadable text.
    """
    for cause in causes:
        if isinstance(cause, UnfitInterpreterError):
            raise cause  # packproof cannot judge it
        if isinstance(cause, KernelFault):
            return cause
        if isinstance(cause, OutsideConvention):
            return OutsideDomain(f"{stage}{cause}")
        if not _readable(cause):
            return KernelFault("raised", f"{stage}{type(cause).__name__} whose message cannot be read")
    return None


def lacks_memory(cause: BaseException) -> bool:
    """Whether an exception reports, in the words of torch, Triton or CUDA, an exhausted memory."""
    return isinstance(cause, torch.OutOfMemoryError | MemoryError) or bool(_NO_MEMORY.search(str(cause)))


def _readable(error: BaseException) -> bool:
    """Whether the error's text can be read: its `__str__` may be the kernel's code."""
    try:
        return isinstance(str(error), str)
    except Exception:
        return False


def _in_full(error: Exception) -> str:
    """Kind and first line, the kernel's line that raised it, the other lines indented."""
    text = str(error) or (own_statement(error) or "").partition("\n")[0]
    first, *more = f"{type(error).__name__}: {text}"[:_MAX_MESSAGE].splitlines()
    return f"{first}{_line_of(error)}" + "".join(f"\n    {line}" for line in more if line.strip())


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes: Triton's interpreter and autograd wrap the errors they pass on."""
    met: list[BaseException] = []  # circular for an error unwrapped by the interpreter: its context has it as cause
    cause: BaseException | None = error
    while cause is not None and cause not in met:
        yield cause
        met.append(cause)
        cause = cause.__cause__ or cause.__context__


def _line_of(error: BaseException) -> str:
    """The last line of the kernel's own code on the traceback, as " (file.py:12)"."""
    callers = [frame for frame in traceback.extract_tb(error.__traceback__) if not foreign(frame.filename)]
    if contradicts_itself(error):  # raised inside packproof's functions: report their caller
        callers = [frame for frame in callers if not checks_arguments(frame.filename)] or callers
    return f" ({Path(callers[-1].filename).name}:{callers[-1].lineno})" if callers else ""
