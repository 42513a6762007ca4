"""The process of a module: it builds the module, and is forked for each setting; or another builds it for each."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self

from packproof.base.errors import KernelFault, UsageError
from packproof.base.records import RecordError, to_json
from packproof.harness.process import shared_zygote
from packproof.harness.process.programs import ProgramProcess
from packproof.models.apart.messages import ModuleSource, decode_record
from packproof.models.apart.remote_module import ModuleSession, RemoteModule, error_in
from packproof.models.subjects.conventions import CONVENTIONS, Convention
from packproof.models.subjects.modes import Mode
from packproof.models.subjects.pack import Pack
from packproof.models.subjects.tested_module import ModuleFacts

_PROGRAM = "packproof.models.apart.program"


@dataclass(frozen=True)
class ConventionFacts:
    """A user's convention without its function: only the process of the module imports that."""

    address: str
    name: str
    about: str
    optional: tuple[str, ...]
    batched: bool
    padding: Literal["", "end", "between"]
    labels: Literal["every", "first_ignored", "shifted"]


class ModuleProcess:
    """The process of a module. As a context it ends the process and all its forks.

    source: the module.
    device: of its calls.
    seconds: how long the import and the construction may take.

    Raises UsageError or ArgumentError with the reason if no module can be built.
    """

    facts: ModuleFacts
    conventions: tuple[Convention, ...]
    """Those of the source; of a user's own, the function is not here."""
    addresses: Mapping[str, str]
    """The addresses of the user's own, by name."""
    modes: tuple[Mode, ...]
    """In which it can run, if the source asks for them."""
    notes: tuple[str, ...]
    """Modes in which it cannot, with the reasons."""

    def __init__(self, source: ModuleSource, *, device: str, seconds: float) -> None:
        self._resources = ExitStack()
        self._order, self._interpreted = {"source": to_json(source)}, is_interpreted(device)
        self._process = ProgramProcess(shared_zygote(self._interpreted), _PROGRAM, self._order)
        self._resources.callback(self._process.end)
        try:
            self._read_facts(source, seconds)
        except BaseException:
            self.close()
            raise
        self._zygote = self._process.as_zygote()
        self._resources.callback(self._zygote.close)

    def _read_facts(self, source: ModuleSource, seconds: float) -> None:
        try:
            answer = self._process.start(seconds)
        except KernelFault as fault:
            ending = fault_text(fault).partition("\n")[0]
            raise UsageError(f"{source.target}: no module can be made: its process {ending}") from fault
        if answer.kind != "built":
            raise error_in(answer) if answer.kind == "refused" else UsageError(str(answer.body.get("text", "")))
        try:
            self._decode(source, answer.body)
        except RecordError as error:
            text = f"{source.target}: no module can be made: what its process told of it does not fit: {error}"
            raise UsageError(text) from error

    def _decode(self, source: ModuleSource, body: Mapping[str, Any]) -> None:
        facts: ModuleFacts = decode_record(ModuleFacts, body.get("facts"), {})
        sizes = facts.sizes
        least = min(*sizes.blocks, *sizes.widths, *sizes.config_lengths, facts.embedding_rows or 1, 1)
        if least < 1 or not sizes.blocks or facts.embedding_rows == 0:
            raise RecordError("has sizes below 1")
        self.facts = replace(facts, device="cpu")  # of what arrives here
        own: tuple[ConventionFacts, ...] = decode_record(tuple[ConventionFacts, ...], body.get("conventions"), {})
        by_address = {entry.address: _convention(entry) for entry in own}
        if missing := [name for name in source.conventions if name not in {*CONVENTIONS, *by_address}]:
            raise RecordError(f"lacks the convention {missing[0]}")
        self.conventions = tuple(CONVENTIONS.get(name) or by_address[name] for name in source.conventions)
        self.addresses = {convention.name: address for address, convention in by_address.items()}
        self._forks = body.get("forks") is True
        self.modes = decode_record(tuple[Mode, ...], body.get("modes"), {})
        self.notes = decode_record(tuple[str, ...], body.get("notes"), {})

    def module(self) -> RemoteModule:
        """The module, in a process of its own that is started at the first call: another one for each setting."""
        return RemoteModule(ModuleSession(self._start), self.facts)

    def _start(self) -> ProgramProcess:
        if self._forks:
            return ProgramProcess(self._zygote, _PROGRAM, {})
        return ProgramProcess(shared_zygote(self._interpreted), _PROGRAM, {**self._order, "answers": True})

    def close(self) -> None:
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_interpreted(device: str) -> bool:
    """Whether the process of a module on this device interprets Triton's kernels: if the user has switched it on."""
    return device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"


def fault_text(fault: BaseException) -> str:
    """How a process ended, in the words after its name; its last output is in the lines below."""
    text = str(fault)
    return f"was {text}" if text.startswith("killed") else text


def _convention(entry: ConventionFacts) -> Convention:
    def absent(_: Pack) -> Mapping[str, Any]:
        raise AssertionError("the function of a user's convention is called beside the module")

    return Convention(
        entry.name, entry.about, absent, entry.optional, entry.batched, padding=entry.padding, labels=entry.labels
    )
