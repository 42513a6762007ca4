"""A module in another process, as its laws see it: each method is a request, and its answer is checked."""

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from packproof.base.errors import ArgumentError, KernelFault, PackproofError, UsageError
from packproof.base.records import RecordError
from packproof.harness.process.programs import Frame, InternalWorkerError, ProgramProcess
from packproof.models.apart.messages import decode_record, encode_record, method_kinds
from packproof.models.subjects.choices import Choice
from packproof.models.subjects.conventions import Convention
from packproof.models.subjects.modes import CannotRun, Mode
from packproof.models.subjects.pack import Pack
from packproof.models.subjects.refusals import ModuleCrashed, ModuleEnded, ModuleRefused, NoGradient, NoOutput
from packproof.models.subjects.tested_module import CallResult, ModuleCall, ModuleFacts, Step, StepPart

_ERRORS: Mapping[str, type[PackproofError]] = {
    error.__name__: error
    for error in (ModuleRefused, NoOutput, NoGradient, ModuleCrashed, CannotRun, ArgumentError, UsageError)
}


class ModuleSession:
    """The calls of one setting: a process with a copy of the module, forked at the first call.

    start: starts the process.
    """

    def __init__(self, start: Callable[[], ProgramProcess]) -> None:
        self._start = start
        self._process: ProgramProcess | None = None
        self._seconds, self._end = 0.0, 0.0
        self._n_modules, self._dropped = 1, list[int]()

    def start_clock(self, seconds: float) -> None:
        self._seconds, self._end = seconds, time.monotonic() + seconds

    def new_number(self) -> int:
        """The number of a further module in the process."""
        self._n_modules += 1
        return self._n_modules - 1

    def drop(self, number: int) -> None:
        """Let a module go, with the next request."""
        self._dropped.append(number)

    def ask(self, method: str, module: int, arguments: Mapping[str, Any], target: int = 0) -> Any:
        """The result of a module's method. Raises the error of the method, or ModuleEnded."""
        kinds = method_kinds(method)
        encoded, tensors = encode_record(arguments)
        dropped, self._dropped = self._dropped, []
        body = {"module": module, "arguments": encoded, "target": target, "dropped": dropped}
        try:
            answer = self._ask(method, body, tensors)
            if answer.kind == "refused":
                raise error_in(answer)
            if answer.kind == "broken":
                raise InternalWorkerError(f"the module's process failed by itself:\n{answer.body.get('text', '')}")
            kind = type(None) if kinds["return"] is Self else kinds["return"]
            return decode_record(kind, answer.body.get("result"), answer.tensors)
        except RecordError as error:
            self.close()
            fault = KernelFault("malformed", f"wrote into packproof's channel: an answer that does not fit: {error}")
            raise ModuleEnded(fault) from error
        except KernelFault as fault:
            raise ModuleEnded(self._with_whole_limit(fault)) from fault

    def _ask(self, method: str, body: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Frame:
        if self._process is None:
            self._process = self._start()
            self._process.start(self._seconds_left())
        return self._process.ask(method, body, tensors, self._seconds_left())

    def _seconds_left(self) -> float:
        return max(self._end - time.monotonic(), 0.001)

    def _with_whole_limit(self, fault: KernelFault) -> KernelFault:
        """The fault, with the time of all calls together."""
        _, _, output = str(fault).partition("\n")
        if fault.kind != "hung":
            return fault
        return KernelFault("hung", "\n".join(filter(None, (f"gave no answer within {self._seconds:g} s", output))))

    def close(self) -> None:
        """End the process. The next call starts another."""
        if self._process is not None:
            self._process.end()
            self._process = None


class RemoteModule:
    """A TestedModule in another process.

    number: its number there.
    """

    def __init__(self, session: ModuleSession, facts: ModuleFacts, number: int = 0) -> None:
        self._session, self._number, self.facts = session, number, facts
        if number:
            weakref.finalize(self, session.drop, number).atexit = False

    def copy(
        self, dtype: torch.dtype | None = None, mode: Mode | None = None, *, dropout: bool = False
    ) -> "RemoteModule":
        facts = replace(self.facts, dtype=dtype) if dtype else self.facts
        return self._derive("copy", facts, dtype=dtype, mode=mode, dropout=dropout)

    def uncompiled(self) -> "RemoteModule":
        return self._derive("uncompiled", self.facts)

    def to_device(self, device: str) -> "RemoteModule":
        return self._derive("to_device", self.facts, device=device)  # its tensors arrive on the CPU

    def start_clock(self, seconds: float) -> None:
        self._session.start_clock(seconds)

    def forward(self, call: ModuleCall) -> CallResult:
        result: CallResult = self._ask("forward", call=call)
        return result

    def backward(self, cotangent: Tensor) -> Mapping[str, Tensor]:
        gradients: Mapping[str, Tensor] = self._ask("backward", cotangent=cotangent)
        return gradients

    def start_sum(self) -> None:
        self._ask("start_sum")

    def add_gradients(self, cotangent: Tensor) -> None:
        self._ask("add_gradients", cotangent=cotangent)

    def summed_gradients(self) -> Mapping[str, Tensor]:
        gradients: Mapping[str, Tensor] = self._ask("summed_gradients")
        return gradients

    def step(self, parts: tuple[StepPart, ...], *, repeats: tuple[Choice | None, ...] | None = None) -> Step:
        step: Step = self._ask("step", parts=parts, repeats=repeats)
        return step

    def copy_buffers(self, source: "RemoteModule") -> None:
        self._ask("copy_buffers", source=source._number)

    def freeze(self, numbers: tuple[int, ...]) -> None:
        self._ask("freeze", numbers=numbers)

    def decay(self, factor: float) -> None:
        self._ask("decay", factor=factor)

    def perturb(self, relative: float, seed: int) -> None:
        self._ask("perturb", relative=relative, seed=seed)

    def changing_arguments(self, convention: Convention, pack: Pack) -> tuple[str, ...]:
        names: tuple[str, ...] = self._ask("changing_arguments", convention=convention, pack=pack)
        return names

    def leaking_module(self, call: ModuleCall, changed_x: Tensor, document: int) -> tuple[str, ...]:
        return self._lines("leaking_module", call=call, changed_x=changed_x, document=document)

    def leaking_backward(self, call: ModuleCall, pair: tuple[int, int], seed: int) -> tuple[str, ...]:
        return self._lines("leaking_backward", call=call, pair=pair, seed=seed)

    def differing_module(self, call: ModuleCall, document: int, roundings: float) -> tuple[str, ...]:
        return self._lines("differing_module", call=call, document=document, roundings=float(roundings))

    def mode_culprit(
        self, plain: "RemoteModule", parts: tuple[StepPart, ...], plain_parts: tuple[StepPart, ...], tolerance: float
    ) -> tuple[str, ...]:
        arguments = {"plain": plain._number, "parts": parts, "plain_parts": plain_parts, "tolerance": float(tolerance)}
        return self._lines("mode_culprit", **arguments)

    def _ask(self, method: str, **arguments: Any) -> Any:
        return self._session.ask(method, self._number, arguments)

    def _lines(self, method: str, **arguments: Any) -> tuple[str, ...]:
        lines: tuple[str, ...] = self._ask(method, **arguments)
        return lines

    def _derive(self, method: str, facts: ModuleFacts, **arguments: Any) -> "RemoteModule":
        number = self._session.new_number()
        self._session.ask(method, self._number, arguments, number)
        return RemoteModule(self._session, facts, number)


def error_in(frame: Frame) -> PackproofError:
    """The exception in a frame."""
    kind = _ERRORS.get(str(frame.body.get("error")), ModuleRefused)
    error = kind(str(frame.body.get("text", "")))
    if isinstance(error, ModuleRefused):
        error.mistake = str(frame.body.get("mistake", ""))
    return error
