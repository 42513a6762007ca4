"""Runs one call of a function in this process: places the tensors, differentiates, and says plainly what went wrong."""

import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from packproof.harness.guard import POISON, Fenced, Guard, distinct
from packproof.harness.surroundings import Snapshot, settings_kept
from packproof.properties.call import Call, KernelFault, Placement, Refused, Result
from packproof.properties.declaration import refusals

_MAX_MESSAGE = 1000


class InProcess:
    """A Runner that calls `function` right here: for tests, and in a worker process, which is what protects the caller.

    device: "cpu", or another device of torch's. snapshot: torch's functions before `function` was imported.
    Triton programs are sanitised where they are interpreted: on the CPU, in a process started with TRITON_INTERPRET=1.
    """

    def __init__(self, function: Callable[..., Any], device: str = "cpu", snapshot: Snapshot | None = None) -> None:
        self._function = function
        self._device = torch.device(device)
        self._snapshot = snapshot or Snapshot()
        self._metadata: dict[tuple[int, torch.dtype], Fenced] = {}
        self._stage = ""
        self._interpreting = (
            self._device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
        )

    def run(self, call: Call) -> Result:
        """Returns the result, or raises KernelFault or Refused."""
        guard = Guard(native=call.guard)
        guarded = call.guard or self._interpreting
        given = {**call.inputs, **{f"cotangent:{name}": t for name, t in call.cotangents.items()}}
        placed = {name: self._place(guard, call, name, t, nth) for nth, (name, t) in enumerate(given.items())}
        inputs = {name: placed[name] for name in call.inputs}
        cotangents = {name: placed[f"cotangent:{name}"] for name in call.cotangents}
        cu_seqlens = self._cu_seqlens(guard, call)
        for name in call.wrt:
            inputs[name].requires_grad_()
        self._stage = ""
        with self._judging(), settings_kept(), ExitStack() as watchers:
            if guarded:
                watchers.enter_context(guard)
            read_only = [*inputs.values(), *cotangents.values(), cu_seqlens]
            sanitizer = watchers.enter_context(_sanitizer(read_only, call.guard)) if self._interpreting else None
            returned = self._function(**inputs, cu_seqlens=cu_seqlens, **call.options)
            self._synchronise()
            outputs = _named_outputs(returned, call.outputs, cu_seqlens.device)
            self._stage = "in the backward pass: "
            gradients = _vjp(outputs, cotangents, {name: inputs[name] for name in call.wrt})
            self._synchronise()
        self._snapshot.check()
        if guarded:
            guard.check()
        return Result(
            outputs=_on_host(outputs),
            gradients=_on_host(gradients),
            inputs_after=_on_host({**inputs, "cu_seqlens": cu_seqlens}) if call.guard else {},
            interpreted=sanitizer is not None and sanitizer.launches > 0,
        )

    def impatient(self) -> AbstractContextManager[None]:
        """Nothing here can be hurried: a call that hangs hangs its caller."""
        return nullcontext()

    def restart(self) -> None:
        """Forget the metadata tensors; what the function itself remembers is beyond reach here."""
        self._metadata.clear()

    def _place(self, guard: Guard, call: Call, name: str, tensor: Tensor, nth: int) -> Tensor:
        """A copy of `tensor`, the nth of a call, on the device, between canaries, laid out as the call says."""
        if tensor.dtype not in POISON:
            return tensor.to(self._device, copy=True)
        shape = tuple(tensor.shape)
        stride, lead = _strides(shape, call.placement.get(name, "contiguous"), nth)
        placed = guard.fence(name, shape, stride, tensor.dtype, self._device, lead=lead).tensor
        cells = distinct(placed)
        cells.copy_(tensor[:1] if cells.shape != placed.shape else tensor)
        return placed

    def _cu_seqlens(self, guard: Guard, call: Call) -> Tensor:
        """The offsets on the device: a fresh tensor, or the one of the last such call, edited in place."""
        key = (call.cu_seqlens.numel(), call.cu_seqlens.dtype)
        if call.edit_metadata and key in self._metadata:
            fenced = guard.adopt(self._metadata[key])
        else:
            fenced = guard.fence("cu_seqlens", (key[0],), (1,), key[1], self._device)
        self._metadata[key] = fenced
        return fenced.tensor.copy_(call.cu_seqlens)

    @contextmanager
    def _judging(self) -> Iterator[None]:
        """Turn whatever the function raises into a KernelFault or Refused that says where it came from."""
        try:
            yield
        except SystemExit as error:
            raise KernelFault("exited", f"{self._stage}called sys.exit({error.code!r})") from error
        except Exception as error:
            self._snapshot.check()
            for cause in _causes(error):
                if isinstance(cause, KernelFault):
                    raise cause from None
            if lost := self._device_error():
                raise KernelFault("crashed", f"{self._stage}{lost}{_line_of(error)}") from error
            if isinstance(error, NotImplementedError) or self._declared_refusal(error):
                raise Refused(f"{self._stage}{error}") from error
            first, *more = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE].splitlines()
            text = "".join(f"\n    {line}" for line in more if line.strip())
            raise KernelFault("raised", f"{self._stage}{first}{_line_of(error)}{text}") from error

    def _declared_refusal(self, error: Exception) -> bool:
        return any(text in str(error) for text in refusals(self._function))

    def _synchronise(self) -> None:
        if self._device.type != "cpu":
            torch.get_device_module(self._device).synchronize(self._device)

    def _device_error(self) -> str:
        """What a device says that takes no more work after an error, in one line; "" for one that does."""
        try:
            self._synchronise()
        except RuntimeError as error:
            return str(error).partition("\n")[0]
        return ""


def _sanitizer(read_only: list[Tensor], guarded: bool) -> AbstractContextManager[Any]:
    from packproof.harness.sanitizer import Sanitizer  # noqa: PLC0415  (needs triton)

    # programs may run in any order: a guarded call tries another one
    return Sanitizer(read_only=read_only, order="reverse" if guarded else "forward")


def _named_outputs(returned: Any, names: tuple[str, ...], device: torch.device) -> dict[str, Tensor]:
    """The returned tensors by name. Shapes and dtypes are not judged here."""
    expected = f"expected {names[0]}" if len(names) == 1 else f"expected a tuple ({', '.join(names)})"
    if len(names) == 1:
        if not isinstance(returned, Tensor):
            raise KernelFault("malformed", f"returned {_described(returned)}, {expected}")
        returned = (returned,)
    elif not isinstance(returned, tuple) or len(returned) != len(names):
        raise KernelFault("malformed", f"returned {_described(returned)}, {expected}")
    for name, tensor in zip(names, returned, strict=True):
        if not isinstance(tensor, Tensor):
            raise KernelFault("malformed", f"returned {_described(tensor)} for {name}, expected a tensor")
        if tensor.device != device:
            raise KernelFault("malformed", f"returned {name} on {tensor.device}, expected {device}")
        if tensor.layout is not torch.strided or not tensor.is_floating_point():
            kind = tensor.dtype if tensor.layout is torch.strided else tensor.layout
            raise KernelFault("malformed", f"returned {name} as {kind}, expected a dense floating tensor")
    return dict(zip(names, returned, strict=True))


def _described(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        return "one tensor"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _vjp(
    outputs: Mapping[str, Tensor], cotangents: Mapping[str, Tensor], wrt: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The gradients that autograd reaches, by input name, from the outputs that are attached and of the right shape."""
    pairs = [
        (outputs[name], cotangent)
        for name, cotangent in cotangents.items()
        if outputs[name].requires_grad and outputs[name].shape == cotangent.shape
    ]
    if not pairs or not wrt:
        return {}
    heads, incoming = zip(*pairs, strict=True)
    gradients = torch.autograd.grad(heads, list(wrt.values()), incoming, allow_unused=True)
    return {name: g for name, g in zip(wrt, gradients, strict=True) if g is not None}


def _strides(shape: tuple[int, ...], placement: Placement, nth: int) -> tuple[tuple[int, ...], int]:
    """Strides and leading elements that put the nth tensor of a call into memory as `placement` says.

    Slices of equal shape have strides of their own, so that one taken for another shows.
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
    return _dense(shape), 0


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from: Triton's interpreter and autograd wrap what they pass on."""
    met: list[BaseException] = []  # an error that the interpreter unwraps has its wrapper for context, and is its cause
    cause: BaseException | None = error
    while cause is not None and cause not in met:
        yield cause
        met.append(cause)
        cause = cause.__cause__ or cause.__context__


_FOREIGN = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, __file__))
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep


def _line_of(error: BaseException) -> str:
    """The line of the kernel's own code that an error came through last, as " (file.py:12)"."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_FOREIGN, "<"))
        and (not frame.filename.startswith(_STDLIB) or "site-packages" in frame.filename)
        and f"{os.sep}triton{os.sep}" not in frame.filename
    ]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
