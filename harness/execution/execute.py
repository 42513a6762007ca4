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
from packproof.harness.execution.error_classification import free_bytes, lacks_memory, verdict_on
from packproof.harness.execution.invocation import BACKWARD, Invocation, Tensors
from packproof.harness.execution.left_on import nothing_left_on
from packproof.harness.execution.modes import MODES
from packproof.harness.execution.refusals import Computing
from packproof.harness.execution.torch_state import TorchState, settings_kept
from packproof.harness.interpreter.memory_guard import FENCE_BYTES, POISON, Guard, GuardedTensor, distinct
from packproof.harness.interpreter.tuning import configured
from packproof.properties.call import Call, KernelFault, MachineLimit, Placement, Refused, Result
from packproof.refs.errors import UsageError

_COMPARED = 1 << 26  # elements at a time
_REACH: Mapping[Placement, int] = {"beyond 2^31": 2**31, "beyond 2^32": 2**32}


class InProcess:
    """A Runner that calls `function` in this process: in tests, and in a worker process, which protects its caller.

    function: the kernel.
    device: "cpu", or another device of torch's.
    snapshot: torch's functions as they were before `function` was imported.
    fence_bytes: bytes of canaries around each tensor.

    Triton programs are sanitised while they are interpreted: on the CPU, in a process started with TRITON_INTERPRET=1.
    """

    together = True
    """Whether the programs of an interpreted launch may run as one batch."""

    time_limit = math.inf
    """Seconds for one call: nothing ends a call in this process."""

    def __init__(
        self,
        function: Callable[..., Any],
        device: str = "cpu",
        snapshot: TorchState | None = None,
        fence_bytes: int = FENCE_BYTES,
    ) -> None:
        self._function = function
        self._fence_bytes = fence_bytes
        self.device = device
        self._device = torch.device(device)
        self._check_patches = (snapshot or TorchState()).checker
        self._metadata: dict[tuple[str, int, torch.dtype], GuardedTensor] = {}
        self._interpreting = (
            self._device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
        )

    def warm(self) -> None:
        """Create the device's context now, about a second. Raises UsageError on failure, MachineLimit for lack of
        memory.
        """
        try:
            torch.empty(1, device=self._device)
        except RuntimeError as error:
            kind = MachineLimit if lacks_memory(error) else UsageError
            raise kind(f"{self.device} cannot be used: {str(error).partition(chr(10))[0]}") from error

    def reach(self) -> None:
        """Raises UsageError if the device cannot be used; otherwise creates no context."""
        if self._device.type == "cuda" and not (self._device.index or 0) < torch.cuda.device_count():
            self.warm()  # raises with the reason

    def run(self, call: Call) -> Result:
        """Returns the result, or raises KernelFault or Refused."""
        if not call.large:
            return self._run(call)
        on_gpu = self._device.type == "cuda"
        try:
            if on_gpu:
                self._require_memory(call)
            return self._run(call)
        except (KernelFault, Refused) as error:
            on_gpu &= not (isinstance(error, KernelFault) and error.kind == "crashed")  # then the context is gone
            _let_go(error)
            raise
        finally:
            self._metadata.clear()  # and with it the tensors an adapter has derived from it
            gc.collect()  # reference cycles of error frames and autograd graphs
            if on_gpu:
                torch.cuda.empty_cache()

    def _run(self, call: Call) -> Result:
        guard = Guard(call.guard, self._fence_bytes)
        interpreting = self._interpreting and call.mode not in ("compiled", "opcheck")  # both inspect allocations
        guarded = call.guard or interpreting
        try:
            invocation = self._prepared(guard, call)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            raise MachineLimit(f"the tensors of this call do not fit: {error}") from error
        inputs = {**invocation.inputs, **invocation.metadata}
        incoming = {f"cotangent:{name}": dy for name, dy in invocation.cotangents.items()}
        with ExitStack() as watchers:
            launched = watchers.enter_context(configured(call.configuration))
            watchers.enter_context(self._classifying(invocation))
            watchers.enter_context(nothing_left_on())
            watchers.enter_context(settings_kept())
            if guarded:
                watchers.enter_context(guard)
            read_only = [*inputs.values(), *incoming.values()]
            sanitizer = None
            if interpreting:
                sanitizer = watchers.enter_context(self._sanitizer(read_only, guarded=call.guard))
            outputs, gradients = MODES[call.mode](invocation)
            invocation.synchronise()
        self._check_patches()
        if guarded:
            guard.check()
        _require_size({**outputs, **gradients}, call)
        return Result(
            outputs=_on_host(outputs, call),
            gradients=_on_host(gradients, call),
            inputs_after=_on_host({**inputs, **incoming}) if call.guard else {},
            interpreted=sanitizer is not None and sanitizer.launches > 0,
            operators=invocation.operators,
            tuned=launched(),
            outliers=_outliers(outputs, gradients, call) if call.copies > 1 else {},
        )

    def _prepared(self, guard: Guard, call: Call) -> Invocation:
        """The call with its tensors placed on the device."""
        given = {**call.inputs, **{f"cotangent:{name}": t for name, t in call.cotangents.items()}}
        placed = {name: self._place(guard, call, name, t, nth) for nth, (name, t) in enumerate(given.items())}
        inputs = {name: placed[name] for name in call.inputs}
        cotangents = {name: placed[f"cotangent:{name}"] for name in call.cotangents}
        metadata = {name: self._offsets(guard, call, name, offsets) for name, offsets in call.metadata.items()}
        for name in call.wrt:
            inputs[name].requires_grad_()
        others = getattr(self._function, "other_conventions", {})
        function = others[call.convention] if call.convention else self._function
        return Invocation(function, call, inputs, cotangents, metadata, self._binding)

    @cached_property
    def _binding(self) -> Binding:
        return Binding.of(self._function)

    def printed(self) -> list[str]:
        """Nothing: the function prints into this process's own output."""
        return []

    def impatient(self) -> AbstractContextManager[None]:
        """No effect here: a call that hangs also hangs its caller."""
        return nullcontext()

    def restart(self) -> None:
        """Forget the metadata tensors; the function's own state cannot be reset here."""
        self._metadata.clear()

    def _place(self, guard: Guard, call: Call, name: str, tensor: Tensor, nth: int) -> Tensor:
        """Copy a tensor, the nth of a call, to the device: between canaries, placed as the call requires."""
        many = 1 if name in call.shared else call.copies
        zeros = call.history if name in call.token_rows else 0
        if tensor.dtype not in POISON:
            before = tensor.new_zeros((zeros, *tensor.shape[1:])) if zeros else tensor[:0]
            return torch.cat([before, *[tensor] * many]).to(self._device, copy=True)
        shape = (zeros + len(tensor) * many, *tensor.shape[1:]) if tensor.dim() else ()
        stride, lead = _strides(shape, call.placement.get(name, "contiguous"), nth)
        placed = guard.fence(name, shape, stride, tensor.dtype, self._device, lead=lead).tensor
        cells = distinct(placed)
        if zeros:
            cells[:zeros].zero_()
            cells[zeros:].copy_(tensor)
        elif many > 1:
            cells.view(many, *tensor.shape).copy_(tensor.to(self._device))  # else the host repeats it first
        else:
            cells.copy_(tensor[:1] if cells.shape != placed.shape else tensor)
        return placed

    def _offsets(self, guard: Guard, call: Call, name: str, offsets: Tensor) -> Tensor:
        """Place the offsets on the device: a fresh tensor, or the previous call's tensor edited in place."""
        offsets = _repeated(offsets, call.copies)
        offsets = torch.cat([offsets[:1], offsets[1:] + call.history]) if call.history else offsets
        key = (name, offsets.numel(), offsets.dtype)
        if call.edit_metadata and key in self._metadata:
            fenced = guard.adopt(self._metadata[key])
        else:
            fenced = guard.fence(name, (offsets.numel(),), (1,), offsets.dtype, self._device)
        self._metadata[key] = fenced
        return fenced.tensor.copy_(offsets)

    @contextmanager
    def _classifying(self, invocation: Invocation) -> Iterator[None]:
        """Convert any exception of the function into a KernelFault or Refused with its origin."""
        try:
            yield
        except SystemExit as error:
            raise KernelFault("exited", f"{invocation.stage}called sys.exit({error.code!r})") from error
        except Exception as error:
            self._check_patches()
            found = verdict_on(error, invocation, _bytes(invocation.call), partial(self._again, invocation))
            raise found from None if found.__traceback__ else error

    def _again(self, invocation: Invocation, watch: Computing) -> None:
        """Repeat the call up to the failed stage; report to `watch` whether it launched anything."""
        sanitized = self._sanitizer([], guarded=False) if self._interpreting else nullcontext()
        with nothing_left_on(), sanitized as sanitizer:
            try:
                outputs = invocation.forward()
                if invocation.stage == BACKWARD:
                    invocation.backward(outputs)
            finally:
                if sanitizer is not None and sanitizer.launches:
                    watch.launched()

    def _sanitizer(self, read_only: list[Tensor], *, guarded: bool) -> AbstractContextManager[Any]:
        from packproof.harness.interpreter.batch.launch import BatchingSanitizer  # noqa: PLC0415  (needs triton)
        from packproof.harness.interpreter.sanitizer import Sanitizer  # noqa: PLC0415  (needs triton)

        # a kernel may not depend on the order of its programs: guarded calls run them in reverse, others in batches
        kind = BatchingSanitizer if self.together else Sanitizer
        return kind(read_only, order="reverse" if guarded else "forward")

    def _require_memory(self, call: Call) -> None:
        """Raises MachineLimit if the device has too little free memory, with torch's cache of earlier calls emptied."""
        torch.cuda.empty_cache()
        needed, free = _bytes(call), free_bytes(self._device)
        if free is not None and needed > free:
            raise MachineLimit(f"needs about {needed / 1e9:.0f} GB of GPU memory, {free / 1e9:.0f} GB are free")


def _strides(shape: tuple[int, ...], placement: Placement, nth: int) -> tuple[tuple[int, ...], int]:
    """Strides, and leading elements to skip, for the nth tensor of a call under a placement.

    Slices of equal shape get different strides: a kernel that mixes up its strides fails.
    """
    if placement == "transposed" and len(shape) > 1:
        *rest, columns, rows = _dense((*shape[:-2], shape[-1], shape[-2]))
        return (*rest, rows, columns), 0
    if placement == "sliced" and len(shape) > 1:
        return _dense((*shape[:-1], shape[-1] + 3 + nth)), 1
    if placement == "sliced" and len(shape) == 1:
        return (2,), 1
    if placement == "expanded" and shape:
        return (0, *_dense(shape)[1:]), 0
    if placement in _REACH and shape and shape[0] > 1:
        return (_pitch(shape, _REACH[placement]), *_dense(shape)[1:]), 0
    return _dense(shape), 0


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _pitch(shape: tuple[int, ...], reach: int) -> int:
    """The distance between rows, a multiple of 256, at which the last row starts past `reach` elements."""
    steps = shape[0] - 1
    return max(-(-reach // (256 * steps)) * 256, _dense(shape)[0])


def _repeated(cu_seqlens: Tensor, copies: int) -> Tensor:
    """The offsets of a pack repeated `copies` times, one after another."""
    if copies == 1:
        return cu_seqlens
    starts = torch.arange(copies, dtype=torch.int64)[:, None] * cu_seqlens[-1]
    every = (starts + cu_seqlens[:-1]).reshape(-1)
    return torch.cat([every, (copies * cu_seqlens[-1:].long())]).to(cu_seqlens.dtype)


def _bytes(call: Call) -> int:
    """Roughly the bytes of a call on the device: its tensors as placed.

    A repeated tensor counts three times, to cover outputs, gradients and the kernel's saved tensors.
    """
    given = {**call.inputs, **{f"cotangent:{name}": t for name, t in call.cotangents.items()}}
    total = 0
    for name, t in given.items():
        reach = _REACH.get(call.placement.get(name, "contiguous"), 0)
        copied = 1 if name in call.shared or call.copies == 1 else 3 * call.copies
        zeros = 3 * call.history * t[:1].numel() if name in call.token_rows else 0
        total += max(reach, t.numel() * copied + zeros) * t.element_size()
    return total


def _let_go(error: BaseException | None) -> None:
    """Clear the frames of an exception and of its causes: they hold gigabytes of a GPU's memory."""
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _require_size(tensors: Mapping[str, Tensor], call: Call) -> None:
    """Raises KernelFault for a tensor too large to copy, whatever its storage: `expand` makes any shape."""
    for name, tensor in tensors.items():
        most = call.most_bytes * (call.copies + call.history)
        if (n_bytes := tensor.numel() * tensor.element_size()) > most:
            raise KernelFault("malformed", f"{name} has shape {tuple(tensor.shape)}, {n_bytes:,} bytes")


def _on_host(tensors: Mapping[str, Tensor], call: Call | None = None) -> Tensors:
    """Copies of the tensors by name; of a repeated pack only the last copy's rows, and no rows of a history."""

    def kept(name: str, x: Tensor) -> Tensor:
        if call and call.copies > 1 and name not in call.shared:
            return x[len(x) - len(x) // call.copies :]
        return x[call.history :] if call and call.history and name in call.token_rows else x

    copies = {}
    for name, x in tensors.items():
        with _reading(name):
            copies[name] = kept(name, x.detach()).to("cpu", copy=True)
    return copies


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Raises KernelFault if torch cannot read the tensor, for example after it escaped `vmap`."""
    try:
        yield
    except RuntimeError as error:
        if lacks_memory(error):
            raise MachineLimit(f"{name} does not fit into the memory of the host: {error}") from error
        text = str(error).partition("\n")[0]
        raise KernelFault("malformed", f"returned {name} as a tensor that cannot be read: {text}") from error


def _outliers(outputs: Tensors, gradients: Tensors, call: Call) -> dict[str, tuple[int, Tensor]]:
    """For each tensor of a repeated pack the copy farthest from the last, found on the device."""
    named = {**{f"output:{n}": x for n, x in outputs.items()}, **{f"gradient:{n}": x for n, x in gradients.items()}}
    found = {}
    for name, x in named.items():
        if name.partition(":")[2] in call.shared or not x.numel() or len(x) % call.copies:
            continue
        copies = x.detach().reshape(call.copies, -1, *x.shape[1:])
        if (number := _farthest(copies)) is not None:
            found[name] = number, copies[number].to("cpu", copy=True)
    return found


def _farthest(copies: Tensor) -> int | None:
    """The copy with the largest difference from the last, NaN and Inf first; None if all are equal."""
    last, most, where = copies[-1], 0.0, None
    step = max(1, _COMPARED // last.numel())
    for start in range(0, len(copies), step):
        some = copies[start : start + step]
        apart = torch.where((some == last) | (some.isnan() & last.isnan()), 0.0, (some.float() - last.float()).abs())
        differences = apart.nan_to_num(nan=torch.inf).flatten(1).amax(1)
        if float(differences.max()) > most:
            most, where = float(differences.max()), start + int(differences.argmax())
    return where
