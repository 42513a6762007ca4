"""Runs one call of a function in this process: places the tensors, differentiates, and reports errors."""

import gc
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property, partial
from importlib.util import find_spec
from traceback import clear_frames
from typing import Any

import torch
from torch import Tensor

from packproof.adapters.binding import Binding
from packproof.base.errors import KernelFault, UnwrittenReadError, UsageError
from packproof.harness.process.execution.device import Device, free_bytes
from packproof.harness.process.execution.error_classification import classify_error, lacks_memory
from packproof.harness.process.execution.invocation import BACKWARD, Invocation
from packproof.harness.process.execution.left_on import require_nothing_left_on
from packproof.harness.process.execution.modes import MODES
from packproof.harness.process.execution.refusals import ComputationWatch
from packproof.harness.process.execution.snapshot import copy_to_host, outliers, reported_rows, require_size
from packproof.harness.process.execution.torch_state import TorchState, preserve_settings
from packproof.harness.process.execution.unwritten import require_unused
from packproof.interpreter import FENCE_BYTES, POISON, Guard, GuardedTensor, distinct_elements, use_configuration
from packproof.properties.calling import Call, MachineLimit, Placement, Refusal, Result

OFFSET_REACH: Mapping[Placement, int] = {"beyond 2^31": 2**31, "beyond 2^32": 2**32}


class InProcess:
    """A Runner that calls `function` in this process: in tests, and in a worker process, which protects its caller.

    function: the kernel.
    device: "cpu", or another device of torch's.
    snapshot: torch's functions as they were before `function` was imported.
    fence_bytes: bytes of canaries around each tensor.
    offset_reach: elements past which the rows of a tensor begin, by placement.

    Triton programs are sanitised while they are interpreted: on the CPU, in a process started with TRITON_INTERPRET=1.
    """

    batches_programs = True
    """Whether the programs of an interpreted launch may run as one batch."""

    time_limit = math.inf
    """Seconds for one call: nothing ends a call in this process."""

    def __init__(
        self,
        function: Callable[..., Any],
        device: str = "cpu",
        snapshot: TorchState | None = None,
        fence_bytes: int = FENCE_BYTES,
        offset_reach: Mapping[Placement, int] = OFFSET_REACH,
    ) -> None:
        self._offset_reach = offset_reach
        self._function = function
        self._fence_bytes = fence_bytes
        self.device = device
        self._device = torch.device(device)
        self._check_patches = (snapshot or TorchState()).checker
        self._metadata: dict[tuple[str, int, torch.dtype], GuardedTensor] = {}
        self._tensors: dict[tuple[object, ...], GuardedTensor] = {}
        self._interpreting = (
            self._device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
        )

    def create_context(self) -> None:
        """Create the device's context now, about a second. Raises UsageError on failure, MachineLimit for lack of
        memory.
        """
        try:
            torch.empty(1, device=self._device)
        except RuntimeError as error:
            kind = MachineLimit if lacks_memory(error) else UsageError
            raise kind(f"{self.device} cannot be used: {str(error).partition(chr(10))[0]}") from error

    def require_device(self) -> None:
        """Raises UsageError if the device cannot be used; otherwise creates no context."""
        if self._device.type == "cuda" and not (self._device.index or 0) < torch.cuda.device_count():
            self.create_context()  # raises with the reason

    def run(self, call: Call) -> Result:
        """Returns the result, or raises KernelFault or Refusal."""
        if not call.needs_large_memory:
            return self._run(call)
        on_gpu = self._device.type == "cuda"
        try:
            if on_gpu:
                self._require_memory(call)
            return self._run(call)
        except (KernelFault, Refusal) as error:
            on_gpu &= not (isinstance(error, KernelFault) and error.kind == "crashed")  # then the context is gone
            _clear_all_frames(error)
            raise
        finally:
            self.restart()  # and with the offsets go the tensors that an adapter has derived from them
            gc.collect()  # reference cycles of error frames and autograd graphs
            if on_gpu:
                torch.cuda.empty_cache()

    def _run(self, call: Call) -> Result:
        try:
            return self._run_once(call)
        except UnwrittenReadError as fault:
            return require_unused(fault, partial(self._run_once, call))

    def _run_once(self, call: Call, unwritten: float | None = None) -> Result:
        """Make the call.

        unwritten: the value of fresh memory, which may then be loaded; None if a load of it is a fault.
        """
        guard = Guard(call.guard, self._fence_bytes, math.nan if unwritten is None else unwritten)
        # the first two inspect allocations, and the sanitizer would be timed
        interpreting = self._interpreting and call.mode not in ("compiled", "opcheck", "repeated")
        guarded = call.guard or interpreting
        try:
            invocation = self._prepare(guard, call)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            raise MachineLimit(f"the tensors of this call do not fit: {error}") from error
        inputs = {**invocation.inputs, **invocation.metadata}
        incoming = {f"cotangent:{name}": dy for name, dy in invocation.cotangents.items()}
        with ExitStack() as watchers:
            tuned_kernels = watchers.enter_context(use_configuration(call.configuration, self._device.type))
            watchers.enter_context(self._classify_errors(invocation))
            watchers.enter_context(require_nothing_left_on())
            watchers.enter_context(preserve_settings())
            if guarded:
                watchers.enter_context(guard)
            read_only = [*inputs.values(), *incoming.values()]
            sanitizer = None
            if interpreting:
                sanitizer = watchers.enter_context(
                    self._sanitizer(read_only, guarded=call.guard, loads_unwritten_floats=unwritten is not None)
                )
            snapshot, gradients = MODES[call.mode](invocation)
            invocation.synchronise()
        self._check_patches()
        if guarded:
            guard.check()
        require_size(gradients, call)
        return Result(
            outputs=copy_to_host(snapshot.outputs),
            gradients=copy_to_host({name: reported_rows(name, x, call) for name, x in gradients.items()}),
            inputs_at_return=copy_to_host(snapshot.inputs),
            inputs_after=copy_to_host({**inputs, **incoming}) if call.guard else {},
            outputs_after=copy_to_host(snapshot.outputs_after(call)),
            interpreted=sanitizer is not None and sanitizer.launches > 0,
            operators=invocation.operators,
            computed=invocation.computed,
            host_work=invocation.host_work,
            live_bytes=invocation.live_bytes,
            perturbed_calls=invocation.perturbed_calls,
            different_calls=invocation.different_calls,
            tuned=tuned_kernels(),
            outliers={**snapshot.outliers, **outliers("gradient", gradients, call)},
        )

    def _prepare(self, guard: Guard, call: Call) -> Invocation:
        """The call with its tensors placed on the device."""
        if not call.same_tensors:
            self._tensors.clear()
        tensors = {**call.inputs, **{f"cotangent:{name}": t for name, t in call.cotangents.items()}}
        device_tensors = {
            name: self._place_tensor(guard, call, name, t, nth) for nth, (name, t) in enumerate(tensors.items())
        }
        inputs = {name: device_tensors[name] for name in call.inputs}
        cotangents = {name: device_tensors[f"cotangent:{name}"] for name in call.cotangents}
        metadata = {name: self._place_offsets(guard, call, name, offsets) for name, offsets in call.metadata.items()}
        for name in call.wrt:
            inputs[name].requires_grad_()
        conventions = getattr(self._function, "other_conventions", {})
        function = conventions[call.convention] if call.convention else self._function
        return Invocation(function, call, inputs, cotangents, metadata, self._binding)

    @cached_property
    def _binding(self) -> Binding:
        return Binding.from_function(self._function)

    def printed_lines(self) -> list[str]:
        """Nothing: the function prints into this process's own output."""
        return []

    def with_short_timeout(self) -> AbstractContextManager[None]:
        """No effect here: a call that hangs also hangs its caller."""
        return nullcontext()

    def restart(self) -> None:
        """Forget the tensors of earlier calls; the function's own state cannot be reset here."""
        self._metadata.clear()
        self._tensors.clear()

    def _place_tensor(self, guard: Guard, call: Call, name: str, tensor: Tensor, nth: int) -> Tensor:
        """Copy a tensor, the nth of a call, to the device: between canaries, placed as the call requires.

        A tensor of the pack is repeated as often as the call repeats the pack. A history is rows of zeros before it.
        """
        copies = 1 if name in call.shared else call.copies
        history_rows = call.history if name in call.token_rows else 0
        if tensor.dtype not in POISON:  # no value of this dtype serves as a canary
            history = tensor.new_zeros((history_rows, *tensor.shape[1:])) if history_rows else tensor[:0]
            return torch.cat([history, *[tensor] * copies]).to(self._device, copy=True)
        shape = (history_rows + len(tensor) * copies, *tensor.shape[1:]) if tensor.dim() else ()
        stride, lead = _strides(shape, call.placement.get(name, "contiguous"), nth, self._offset_reach)
        key = (name, shape, stride, tensor.dtype)
        if call.same_tensors and key in self._tensors:
            return _edited(guard.watch(self._tensors[key]).tensor, tensor)
        guarded_tensor = guard.fence(name, shape, stride, tensor.dtype, self._device, leading_elements=lead)
        if call.same_tensors:
            self._tensors[key] = guarded_tensor
        device_tensor = guarded_tensor.tensor
        elements = distinct_elements(device_tensor)
        if history_rows:
            elements[:history_rows].zero_()
            elements[history_rows:].copy_(tensor)
        elif copies > 1:
            # one copy to the device, repeated there: `copy_` from the host would first repeat it in the host's memory
            elements.view(copies, *tensor.shape).copy_(tensor.to(self._device))
        else:
            elements.copy_(tensor[tuple(map(slice, elements.shape))])
        return device_tensor

    def _place_offsets(self, guard: Guard, call: Call, name: str, offsets: Tensor) -> Tensor:
        """Place the offsets on the device: a fresh tensor, or the previous call's tensor edited in place."""
        offsets = _repeat_offsets(offsets, call.copies)
        offsets = torch.cat([offsets[:1], offsets[1:] + call.history]) if call.history else offsets
        key = (name, offsets.numel(), offsets.dtype)
        if call.edit_metadata and key in self._metadata:
            guarded_offsets = guard.watch(self._metadata[key])
        else:
            guarded_offsets = guard.fence(name, (offsets.numel(),), (1,), offsets.dtype, self._device)
        self._metadata[key] = guarded_offsets
        return guarded_offsets.tensor.copy_(offsets)

    @contextmanager
    def _classify_errors(self, invocation: Invocation) -> Iterator[None]:
        """Convert any exception of the function into a KernelFault or Refusal with its origin."""
        try:
            yield
        except SystemExit as error:
            raise KernelFault("exited", f"{invocation.stage}called sys.exit({error.code!r})") from error
        except Exception as error:
            self._check_patches()
            fault = classify_error(
                error,
                invocation,
                _call_bytes(invocation.call, self._offset_reach),
                partial(self._repeat_call, invocation),
            )
            raise fault from None if fault.__traceback__ else error

    def _repeat_call(self, invocation: Invocation, watch: ComputationWatch) -> None:
        """Repeat the call up to the failed stage; report to `watch` whether it launched anything."""
        sanitizing = self._sanitizer([], guarded=False) if self._interpreting else nullcontext()
        with require_nothing_left_on(), sanitizing as sanitizer:
            try:
                outputs = invocation.forward()
                if invocation.stage == BACKWARD:
                    invocation.backward(outputs)
            finally:
                Device(invocation.device).take_error()
                if sanitizer is not None and sanitizer.launches:
                    watch.record_launch()

    def _sanitizer(
        self, read_only: list[Tensor], *, guarded: bool, loads_unwritten_floats: bool = False
    ) -> AbstractContextManager[Any]:
        from packproof.interpreter import BatchingSanitizer, Sanitizer  # noqa: PLC0415  (needs triton)

        # a kernel may not depend on the order of its programs: guarded calls run them in reverse, others in batches
        kind = BatchingSanitizer if self.batches_programs else Sanitizer
        return kind(read_only, "reverse" if guarded else "forward", loads_unwritten_floats=loads_unwritten_floats)

    def _require_memory(self, call: Call) -> None:
        """Raises MachineLimit if the device has too little free memory, with torch's cache of earlier calls emptied."""
        torch.cuda.empty_cache()
        needed_bytes, free_memory = _call_bytes(call, self._offset_reach), free_bytes(self._device)
        if free_memory is not None and needed_bytes > free_memory:
            raise MachineLimit(
                f"needs about {needed_bytes / 1e9:.0f} GB of GPU memory, {free_memory / 1e9:.0f} GB are free"
            )


def _edited(device_tensor: Tensor, tensor: Tensor) -> Tensor:
    """A tensor of an earlier call with these values, as a leaf without a gradient. Equal ones are not written again."""
    device_tensor.requires_grad_(False)
    device_tensor.grad = None
    if not torch.equal(device_tensor.cpu(), tensor):
        device_tensor.copy_(tensor)
    return device_tensor


def _strides(
    shape: tuple[int, ...], placement: Placement, nth: int, offset_reach: Mapping[Placement, int]
) -> tuple[tuple[int, ...], int]:
    """Strides, and leading elements to skip, for the nth tensor of a call under a placement.

    Slices of equal shape get different strides: a kernel that mixes up its strides fails.
    """
    if placement == "transposed" and len(shape) > 1:
        *outer, columns, rows = _contiguous_strides((*shape[:-2], shape[-1], shape[-2]))
        return (*outer, rows, columns), 0
    if placement == "sliced" and len(shape) > 1:
        return _contiguous_strides((*shape[:-1], shape[-1] + 3 + nth)), 1
    if placement == "sliced" and len(shape) == 1:
        return (2,), 1
    if placement in ("expanded", "one element") and shape:
        row = _contiguous_strides(shape)[1:] if placement == "expanded" else (0,) * (len(shape) - 1)
        return (0, *row), 0
    if placement in offset_reach and shape and shape[0] > 1:
        return (_row_stride(shape, offset_reach[placement]), *_contiguous_strides(shape)[1:]), 0
    return _contiguous_strides(shape), 0


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _row_stride(shape: tuple[int, ...], reach: int) -> int:
    """The distance between rows, a multiple of 256, at which the last row starts past `reach` elements."""
    steps = shape[0] - 1
    return max(-(-reach // (256 * steps)) * 256, _contiguous_strides(shape)[0])


def _repeat_offsets(cu_seqlens: Tensor, copies: int) -> Tensor:
    """The offsets of a pack repeated `copies` times, one after another."""
    if copies == 1:
        return cu_seqlens
    starts = torch.arange(copies, dtype=torch.int64)[:, None] * cu_seqlens[-1]
    offsets = (starts + cu_seqlens[:-1]).reshape(-1)
    return torch.cat([offsets, (copies * cu_seqlens[-1:].long())]).to(cu_seqlens.dtype)


def _call_bytes(call: Call, offset_reach: Mapping[Placement, int]) -> int:
    """Roughly the bytes of a call on the device: its tensors as placed.

    A repeated tensor counts three times, to cover outputs, gradients and the kernel's saved tensors; twice, for the
    outputs, where nothing is differentiated.
    """
    tensors = {**call.inputs, **{f"cotangent:{name}": t for name, t in call.cotangents.items()}}
    total, held_at_once = 0, 3 if call.wrt else 2
    for name, t in tensors.items():
        reach = offset_reach.get(call.placement.get(name, "contiguous"), 0)
        copies = 1 if name in call.shared or call.copies == 1 else held_at_once * call.copies
        history_elements = held_at_once * call.history * t[:1].numel() if name in call.token_rows else 0
        total += max(reach, t.numel() * copies + history_elements) * t.element_size()
    return total


def _clear_all_frames(error: BaseException | None) -> None:
    """Clear the frames of an exception and of its causes: they hold gigabytes of a GPU's memory."""
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
