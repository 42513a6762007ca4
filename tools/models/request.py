"""The request to check a module: the module, and every setting in which it is judged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

import torch
from torch import nn

from packproof.base.errors import ArgumentError
from packproof.base.names import ATTENTION, LABELS, SEED, is_seed, long_dtype, require_known
from packproof.harness.process.naming import address
from packproof.harness.report import Cell
from packproof.harness.report.replay_files import ModuleRecord
from packproof.models.apart import ModuleProcess
from packproof.models.apart.remote_module import RemoteModule
from packproof.models.laws.catalogue import JUDGES
from packproof.models.laws.judges import Judgement, PaddedLayout, Trial
from packproof.models.laws.losses import label_form
from packproof.models.running.construction import build_module, input_maker, make_subject
from packproof.models.running.local_module import PickOutput
from packproof.models.subjects.conventions import CONVENTIONS, Convention, find_convention
from packproof.models.subjects.modes import Mode, supported_modes
from packproof.models.subjects.pack import (
    FIRST_LENGTHS,
    Lengths,
    layouts_for,
    long_layouts,
    many_documents,
    padded_layouts,
)
from packproof.models.subjects.subject import MakeInput, PlaceImages, Subject

MATRIX_DTYPES = ("fp32", "bf16")
_COMPILED_LAYOUTS: tuple[Lengths, ...] = (FIRST_LENGTHS, (9, 1, 17, 3))  # few: each new shape may compile again
_MOST_TOKENS = {"quick": 64, "standard": 600, "thorough": 4096}
_LONG_TOKENS = {"standard": (600, 8192), "thorough": (4096, 131_072)}  # more than the first, and at most


@dataclass(frozen=True)
class ModuleRequest:
    """A module and the conventions, modes, dtypes and layouts to check it with."""

    subject: Subject
    conventions: tuple[Convention, ...]
    """The conventions to try."""
    name: str
    """The name of the module in reports."""
    device: str
    origin: Mapping[str, Any] = field(default_factory=dict)
    """The entries of a replay file from which the module is made again. Empty: no replay files."""
    convention_addresses: Mapping[str, str] = field(default_factory=dict)
    """The address of each user-defined convention, by its name; a replay imports the convention from there."""
    profile: str = "standard"
    seed: int = 0
    explicit: bool = True
    """Whether the caller named the conventions. A leak or a refusal then fails the check."""
    modes: tuple[Mode, ...] = (Mode(),)
    dtypes: tuple[torch.dtype, ...] = ()
    matrix: bool = False
    """Try every mode and dtype that the module supports. A refused one is reported and not counted."""
    notes: tuple[str, ...] = ()
    """Modes that cannot run here, with the reasons."""
    layouts: tuple[Lengths, ...] = ()
    """Layouts to try. If these and the padded ones are empty, layouts are made for the module: around its chunk sizes,
    windows and convolution widths."""
    layouts_with_padding: tuple[PaddedLayout, ...] = ()
    """Layouts with padding to try."""
    long_layouts: tuple[Lengths, ...] = ()
    """Layouts past large numbers of the module's config and source, to try in the first mode and dtype, after the
    layouts made for it."""
    laws: tuple[str, ...] = tuple(JUDGES)
    """The properties to judge."""
    labels: str = "auto"
    """The form of labels for a loss, one of LABELS."""
    shrinks: bool = True
    """Whether smaller layouts are tried for a failure, for some seconds."""
    timeout: float = 600.0
    """Seconds for one property of one setting, where the module or the setting has a process of its own."""

    @property
    def is_apart(self) -> bool:
        """Whether the module is in another process."""
        return isinstance(self.subject.module, RemoteModule)

    def settings(self) -> "list[ModuleSetting]":
        """Every combination of convention, mode and dtype. Each is judged separately."""
        dtypes = self.dtypes or (self.subject.dtype,)
        return [ModuleSetting(*combination) for combination in product(self.conventions, self.modes, dtypes)]

    def cells(self, setting: "ModuleSetting") -> list[Cell]:
        """The cells of one setting."""
        dtype, device = str(setting.dtype).removeprefix("torch."), self.device.partition(":")[0]
        judges_padding = setting.convention.padding and (self.layouts_with_padding or not self.layouts)
        is_asked = {
            "padding": judges_padding,
            "modes": setting.mode.is_compared and not self.layouts_with_padding,
            "loss": label_form(self.subject.facts, setting.convention, self.labels) and not self.layouts_with_padding,
        }
        laws = [law for law in self.laws if is_asked.get(law, True)]
        laws = [law for law in laws if law == "modes"] if setting.mode.is_of_a_step else laws
        return [Cell(str(setting), self.name, law, dtype, device) for law in laws]

    def with_replay_file(self, setting: "ModuleSetting", judgement: Judgement) -> Judgement:
        """Write a replay file of the failure, if there is one, and name the file in the verdict."""
        failure, cell = judgement.verdict.failure, judgement.verdict.cell
        if failure is None or not self.origin:
            return judgement
        record = ModuleRecord(
            **self.origin,
            convention=self.convention_addresses.get(setting.convention.name, setting.convention.name),
            property=cell.property,
            lengths=failure.lengths,
            gaps=judgement.gaps,
            dtype=cell.dtype,
            device=cell.device,
            seed=self.seed,
            mode=asdict(setting.mode),
            labels=self.labels,
            message=failure.lines,
        )
        file, write_error = record.write()
        failure = replace(failure, replay=file, lines=(*failure.lines, *filter(None, [write_error])))
        return replace(judgement, verdict=replace(judgement.verdict, failure=failure))

    def trial(self, setting: "ModuleSetting") -> Trial:
        """The subject and layouts of one setting. Raises CannotRun."""
        base, convention = self.subject.to_device(self.device), setting.convention
        base = base if setting.dtype == base.dtype else base.to_dtype(setting.dtype)
        subject = base.in_mode(setting.mode)
        labels, requires_loss = label_form(subject.facts, convention, self.labels), self.labels != "auto"
        if self.layouts or self.layouts_with_padding:
            return Trial(
                subject,
                base,
                convention,
                self.seed,
                self.layouts,
                layouts_with_padding=self.layouts_with_padding,
                labels=labels,
                requires_loss=requires_loss,
                shrinks=self.shrinks,
            )
        padded = tuple(padded_layouts(subject.facts.sizes, between_documents=convention.padding == "between"))
        if setting.mode.compiled:
            return Trial(
                subject,
                base,
                convention,
                self.seed,
                _COMPILED_LAYOUTS,
                layouts_with_padding=padded[:1],
                labels=labels,
                requires_loss=requires_loss,
            )
        most_tokens, first_setting = _MOST_TOKENS[self.profile], self.settings()[0]
        is_first = (setting.mode, setting.dtype) == (first_setting.mode, first_setting.dtype)
        return Trial(
            subject,
            base,
            convention,
            self.seed,
            layouts_for(subject.facts.sizes, most_tokens=most_tokens),
            self.long_layouts if is_first else (),
            many_documents(most_tokens),
            padded,
            labels,
            requires_loss,
        )


@dataclass(frozen=True)
class ModuleSetting:
    convention: Convention
    mode: Mode
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.convention.name} ({self.mode})" if str(self.mode) else self.convention.name


def module_request(
    module: nn.Module | Callable[[], nn.Module] | ModuleProcess,
    *,
    convention: str | Convention | Sequence[str | Convention] | None,
    inputs: int | MakeInput | None = None,
    output: str | PickOutput | None = None,
    redraw: bool = True,
    modes: Sequence[str] = ("eval",),
    attention: Sequence[str] = ("",),
    dtypes: Sequence[str] = (),
    compiled: bool = False,
    matrix: bool = False,
    profile: str = "standard",
    seed: int = 0,
    name: str = "",
    target: str = "",
    device: str | None = None,
    records: bool = True,
    labels: str = "auto",
    place_images: PlaceImages | None = None,
    **request_fields: Any,
) -> ModuleRequest:
    """The request for these arguments: those of `check_module`, and a few more. Raises ArgumentError and UsageError.

    module: a ModuleProcess for a module in another process; conventions, output, redraw and seed are as in its source.
    name: the module in reports; its class by default.
    target: the address from which a replay makes the module again.
    records: whether failures leave replay files.
    place_images: places images in documents; None for documents of text.
    request_fields: further fields of ModuleRequest.
    """
    if profile not in _MOST_TOKENS:
        raise ArgumentError(f"profile: {profile!r}, expected one of {', '.join(_MOST_TOKENS)}")
    if not is_seed(seed):
        raise ArgumentError(f"seed: {seed!r}, expected {SEED}")
    convention_arguments = [convention] if isinstance(convention, str | Convention) else list(convention or CONVENTIONS)
    if isinstance(module, ModuleProcess):
        conventions, addresses = list(module.conventions), module.addresses
    else:
        conventions = [find_convention(argument) for argument in convention_arguments]
        addresses = _convention_addresses(conventions, convention_arguments)
    require_known("labels", labels, LABELS)
    for implementation in attention:
        require_known("attention", implementation, ("", *ATTENTION))
    if matrix and (compiled or [*modes, *attention] != ["eval", ""]):
        raise ArgumentError("matrix: it has every mode and attention, and torch.compile; leave out what chooses them")
    selected_modes = tuple(
        Mode.from_name(mode, implementation, compiled=compiled) for implementation in attention for mode in modes
    )
    notes: tuple[str, ...] = ()
    if isinstance(module, ModuleProcess):
        subject, supported = Subject(module.module(), input_maker(module.facts, inputs)), (module.modes, module.notes)
    else:
        built_module = build_module(module, seed)
        subject = make_subject(built_module, inputs, output, redraw=redraw, seed=seed)
        supported = supported_modes(built_module) if matrix else ((), ())
    subject = replace(subject, place_images=place_images) if place_images else subject
    if matrix:
        (selected_modes, notes), dtypes = supported, dtypes or MATRIX_DTYPES
    origin = {
        "target": target or ("" if isinstance(module, nn.Module | ModuleProcess) else address(module)),
        "inputs": address(inputs) if callable(inputs) else inputs,
        "output": address(output) if callable(output) else output,
        "redraw": redraw,
    }
    return ModuleRequest(
        subject,
        tuple(conventions),
        name or subject.facts.kind,
        device or subject.device,
        origin=origin if records else {},
        convention_addresses=addresses,
        profile=profile,
        seed=seed,
        explicit=convention is not None,
        modes=selected_modes,
        dtypes=tuple(getattr(torch, long_dtype(text)) for text in dtypes),
        long_layouts=long_layouts(subject.facts.sizes, *_LONG_TOKENS[profile]) if profile in _LONG_TOKENS else (),
        matrix=matrix,
        notes=notes,
        labels=labels,
        **request_fields,
    )


def _convention_addresses(
    conventions: Sequence[Convention], convention_arguments: Sequence[str | Convention]
) -> dict[str, str]:
    """The address of each user-defined convention, by its name; the name itself if a Convention has no address."""
    addresses = {}
    for convention, argument in zip(conventions, convention_arguments, strict=True):
        if CONVENTIONS.get(convention.name) is not convention:
            addresses[convention.name] = argument if isinstance(argument, str) else address(argument) or convention.name
    return addresses
