"""Replay: run one failure again from its file, of a kernel or of a module, on this machine or another."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from packproof.base.errors import ArgumentError, UsageError, checked_call
from packproof.base.files import damaged_error
from packproof.base.names import short_dtype
from packproof.harness import check
from packproof.harness.check import ReplayOutcome, ReplayStatus
from packproof.harness.process.naming import Location, address
from packproof.harness.report import Cell, RunFinished, Status, Verdict
from packproof.harness.report.replay_files import MODULE_KIND, ModuleRecord, read_content
from packproof.models.apart import ModuleProcess, ModuleSource
from packproof.models.check import run_module_check
from packproof.models.request import ModuleRequest, module_request
from packproof.models.subjects.modes import Mode

_REPLAY_STATUS: dict[Status, ReplayStatus] = {"passed": "fixed", "failed": "failing"}


@checked_call
def replay(
    path: str | Path,
    *,
    target: str | Callable[..., Any] | None = None,
    device: str | None = None,
    maps: bool = False,
) -> ReplayOutcome:
    """Run the case of a replay file again.

    target: instead of the one in the file; a name, or the function itself.
    device: instead of the one in the file.
    maps: also measure the maps of a failure that `packproof check --html` draws.

    Raises UsageError if the file cannot be read or is damaged. If the kernel or module cannot be imported here, or the
    device is absent, the outcome is "not applicable". A user's op or property is imported in its own process; a module
    runs in its own process too, and a function that makes its inputs is imported here.

    >>> import packproof
    >>> try:
    ...     packproof.replay("no-such-file.json")
    ... except packproof.UsageError as error:
    ...     print("no-such-file.json" in str(error))
    True
    """
    check.require_arguments(path, target, device)
    data = read_content(Path(path))
    if data.get("kind") != MODULE_KIND:
        return check.replay(path, target=target, device=device, maps=maps)
    record = ModuleRecord.from_json(data, Path(path))
    if callable(target) and not address(target):
        raise ArgumentError(f"replay: target is {target!r} but a module is made again by its name: layers.py:Layer")
    target = address(target) if callable(target) else target
    return _outcome(replace(record, target=target or record.target, device=device or record.device), str(path))


def _outcome(record: ModuleRecord, path: str) -> ReplayOutcome:
    start = time.monotonic()
    try:
        mode = Mode.from_json(record.mode)
    except ValueError as error:
        raise damaged_error(path, str(error)) from None
    try:
        verdict = _verdict(record, mode)
    except UsageError as error:
        verdict = _not_run(record, str(error))
    status = _REPLAY_STATUS.get(verdict.status, "not applicable")
    failure = verdict.failure and replace(verdict.failure, replay=path, example=0)
    text = {
        "fixed": "fixed: the property holds here",
        "failing": "\n    ".join(["still failing", *(failure.lines if failure else ())]),
        "not applicable": f"not applicable: {verdict.reason}",
    }[status]
    cell, padding = verdict.cell, f", padding {list(record.gaps)}" if record.gaps else ""
    title = f"{cell.op} · {cell.target} · {cell.property}   {short_dtype(cell.dtype)}, {cell.device}"
    seconds = time.monotonic() - start
    verdict = replace(verdict, failure=failure, seconds=seconds)
    if status == "not applicable":
        verdict = replace(verdict, status="skipped")
    return ReplayOutcome(status, f"{title}\n    lengths {list(record.lengths)}{padding}\n    {text}", verdict)


def _verdict(record: ModuleRecord, mode: Mode) -> Verdict:
    """The verdict on the module in a process of its own. Raises UsageError if the module cannot be made here."""
    if record.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("the failure was on cuda, which is not available here")
    if not record.target:
        raise UsageError(
            "an instance was checked, which no file names; --target, or target=, names a function that makes one"
        )
    if "" in (record.inputs, record.output):
        raise UsageError("inputs or output was a function that no other process can import; write it in a module")
    source = ModuleSource(record.target, (record.convention,), record.output, redraw=record.redraw, seed=record.seed)
    with ModuleProcess(source, device=record.device, seconds=ModuleRequest.timeout) as process:
        *_, end = run_module_check(replace(_request(process, record), modes=(mode,)))
    assert isinstance(end, RunFinished)
    [verdict] = end.verdicts
    return verdict


def _request(process: ModuleProcess, record: ModuleRecord) -> ModuleRequest:
    return module_request(
        process,
        convention=record.convention,
        inputs=_load_function(record.inputs),
        dtypes=(record.dtype,),
        seed=record.seed,
        name=record.target,
        device=record.device,
        records=False,
        layouts=() if record.gaps else (record.lengths,),
        layouts_with_padding=((record.lengths, record.gaps),) if record.gaps else (),
        laws=(record.property,),
        labels=record.labels,
    )


def _load_function(value: Any) -> Any:
    """The function at an address; any other value unchanged."""
    return Location.parse(value).load() if isinstance(value, str) and ":" in value else value


def _not_run(record: ModuleRecord, reason: str) -> Verdict:
    cell = Cell(record.convention, record.target, record.property, record.dtype, record.device)
    return Verdict(cell, "eager", "skipped", 0, 0.0, reason=reason)
