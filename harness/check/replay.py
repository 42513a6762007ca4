"""Replay: run one failure again from its file, here or on another machine."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Literal

from packproof.base.axes import KEYS, parse, shape
from packproof.base.errors import ArgumentError, UsageError, checked_call
from packproof.base.files import damaged_error
from packproof.base.names import DEVICES, PROVENANCE, require_known, short_dtype
from packproof.base.signatures import SIGNATURES
from packproof.base.wording import printable
from packproof.harness.check.diagnosis.measure import measure
from packproof.harness.check.provenance import launches_are_idle
from packproof.harness.check.request import CheckRequest, resolve_property
from packproof.harness.check.targets.target import CheckTarget, open_target
from packproof.harness.process import run_on_every_core
from packproof.harness.process.naming import kernel_address
from packproof.harness.report import Cell, Failure, Status, Tier, Verdict
from packproof.harness.report.replay_files import read_replay
from packproof.properties.cases import Case, Domain
from packproof.properties.judgement import KernelUnderTest, judge_case, record_comparisons
from packproof.properties.laws import Property
from packproof.properties.ops import Op

_MAX_ELEMENTS = 1 << 27

_Target = str | Callable[..., Any]
ReplayStatus = Literal["fixed", "failing", "not applicable"]
_STATUSES: dict[ReplayStatus, Status] = {"fixed": "passed", "failing": "failed", "not applicable": "skipped"}


@dataclass(frozen=True)
class ReplayOutcome:
    """The result of a replay.

    >>> import packproof
    >>> def is_repaired(outcome: packproof.ReplayOutcome) -> bool:
    ...     return outcome.status == "fixed"
    """

    status: ReplayStatus
    """One of "fixed", "failing" and "not applicable"."""
    text: str
    """The status in words, with the case."""
    verdict: Verdict
    """The status as a verdict, with the failure if there is one."""


@checked_call
def replay(
    path: str | Path,
    *,
    target: str | Callable[..., Any] | None = None,
    device: str | None = None,
    maps: bool = False,
) -> ReplayOutcome:
    """Run the case of a replay file again.

    target, device: instead of those in the file.
    maps: measure the maps that `packproof check --html` draws of a failure.

    Raises UsageError if the file cannot be read or is damaged. The outcome is "not applicable" if the kernel cannot be
    imported here or the device is missing. A user's op or property is imported in a process of its own.

    >>> import packproof
    >>> try:
    ...     packproof.replay("no-such-file.json")
    ... except packproof.UsageError as error:
    ...     print("no-such-file.json" in str(error))
    True
    """
    require_arguments(path, target, device)
    data = read_replay(Path(path))
    actual_device = device or data["device"]
    unit = partial(_outcomes, data, str(path), target or data["target"], actual_device, maps)
    [outcome] = run_on_every_core([unit], actual_device, record_type=ReplayOutcome)
    return outcome


def require_arguments(path: object, target: object, device: str | None) -> None:
    """Raises ArgumentError or UsageError for arguments that no replay takes."""
    if not isinstance(path, str | Path):
        raise ArgumentError(f"replay: path is {path!r} but the path of a replay file was expected")
    if not (isinstance(target, str | None) or callable(target)):
        raise ArgumentError(f"replay: target is {target!r} but a function or package.module:function was expected")
    if device is not None:
        require_known("device", device, DEVICES)


def _outcomes(data: dict[str, Any], path: str, target: _Target, device: str, maps: bool) -> Iterator[ReplayOutcome]:
    yield _outcome(data, path, target, device, maps)


def _outcome(data: dict[str, Any], path: str, target: _Target, device: str, maps: bool) -> ReplayOutcome:
    start, case = time.monotonic(), data["case"]
    cell = Cell(data["op"], printable(kernel_address(target)), data["property"], data["dtype"], device)

    def outcome(status: ReplayStatus, text: str, tier: Tier = "eager", failure: Failure | None = None) -> ReplayOutcome:
        title = (
            f"{cell.op} · {cell.target} · {cell.property}   {short_dtype(cell.dtype)}, {device}\n    {case}\n    {text}"
        )
        reason = text if status == "not applicable" else ""
        seconds = time.monotonic() - start
        return ReplayOutcome(
            status, title, Verdict(cell, tier, _STATUSES[status], 1, seconds, reason=reason, failure=failure)
        )

    if device == "cuda" and not _has_cuda():
        return outcome("not applicable", "not applicable: the failure was on cuda, which is not available here")
    try:
        check_target, law = open_replayed(data, target, device)
    except UsageError as error:
        way_out = "; for a kernel of another name, --target or target=" if target == data["target"] else ""
        return outcome("not applicable", f"not applicable: {error}{way_out}")
    check_fits(case, check_target.op, path)
    with replayed_kernel(data, check_target) as kernel:
        with record_comparisons() as comparisons:
            violation, refusal = judge_case(kernel, law, case)
        if refusal and not (violation or refusal.backward):
            return outcome("not applicable", f"not applicable: the kernel declines this case: {refusal}")
        evidence = measure(kernel, law, case, violation) if violation and maps else None
        is_interpreted = kernel.interpreted and not (law.name == PROVENANCE and launches_are_idle(kernel, case))
    tier: Tier = "gpu" if device == "cuda" else "interpret" if is_interpreted else "eager"
    if violation is None and not comparisons:
        return outcome("not applicable", f"not applicable: {law.nothing_to_compare}")
    if violation is None:
        return outcome("fixed", "fixed: the property holds here", tier)
    lines = violation.lines()
    failure = Failure(case.lengths, str(violation.tensor or ""), (case.setting, *lines), 0, 0, str(path), evidence)
    return outcome("failing", "\n    ".join(["still failing", *lines]), tier, failure)


def open_replayed(data: Mapping[str, Any], target: _Target, device: str) -> tuple[CheckTarget, Property]:
    """The kernel and the property of a replay file's content. Raises UsageError if one of them is not here."""
    op = data["op"]
    request = CheckRequest(
        target=target,
        op=op if op in SIGNATURES or ":" in op else None,  # else only the kernel's declaration has it
        device=device,
        promises=data["promises"],
        domain=_conditions(data.get("domain", [])),
        contract=data.get("contract"),
        draw_configs=data.get("draw_configs") is True,
    )
    return open_target(request), resolve_property(data["property"])


@contextmanager
def replayed_kernel(data: Mapping[str, Any], target: CheckTarget) -> Iterator[KernelUnderTest]:
    """The kernel of a replay file's content, in a process of its own."""
    declared = target.declared
    with target.worker() as worker:
        yield KernelUnderTest(
            target.op,
            worker,
            declared.promises,
            gradients=data["gradients"],
            domain=declared.domain,
            fixed=tuple(declared.fixed),
            page_sizes=declared.page_sizes,
            takes_cuts=declared.takes_cuts,
            may_refuse=target.request.contract is None,
            change=data["change"],
        )


def _conditions(data: Any) -> tuple[str, ...]:
    if not isinstance(data, list) or not all(isinstance(text, str) for text in data):
        raise UsageError(f"domain: damaged, {json.dumps(data)[:60]}, expected a list of conditions")
    return tuple(data)


def check_fits(case: Case, op: Op, path: str | Path) -> None:
    """Raises UsageError unless the case fits the op: its inputs, options, sizes, forms and number of elements."""
    for owner, kind, names, known_names in (
        ("op", "input", case.present, op.inputs),
        ("op", "input", case.float32, op.float32),
        ("op", "input", case.narrow, op.narrow),
        ("op", "neutral input", case.omitted, op.neutral),
        ("op", "input", dict(case.axes), {**op.inputs, **op.outputs}),
        ("op", "option", dict(case.options), op.options),
        ("op", "size", dict(case.sizes), op.sizes[0]),
        ("case", "size", op.sizes[0], dict(case.sizes)),
    ):
        for name in names:
            if name not in known_names:
                raise damaged_error(path, f"the {owner} has no {kind} {name!r}")
    if case.key_lengths is not None and not op.packs_keys:
        raise damaged_error(path, "the op has no second packing for key_lengths")
    for name, form in case.axes:
        if form >= len(parse({**op.inputs, **op.outputs}[name]).alternatives):
            raise damaged_error(path, f"{name} has no form {form}")
    for name, value in case.options:
        if value not in op.options[name]:
            raise damaged_error(path, f"option {name} is {value!r}, expected one of {op.options[name]}")
    for name, size in case.sizes:
        words = {str(sizes[name]) for sizes in (*op.sizes, *op.model_sizes)} & case.size_words.keys()
        if size not in words and not (type(size) is int and size >= 1):
            raise damaged_error(
                path, f"size {name} is {size!r}, expected {' or '.join(['an integer above 0', *words])}"
            )
    if not Domain.of(op.where).allows(op, case):
        raise damaged_error(path, f"its sizes are none of {op.name}: {'; '.join(op.where)}")
    if (elements := _n_elements(case, op)) > _MAX_ELEMENTS:
        raise UsageError(f"{path}: damaged, its tensors have {elements:,} elements, expected {_MAX_ELEMENTS:,} at most")


def _n_elements(case: Case, op: Op) -> int:
    """Elements of all inputs and outputs, counted without making tensors."""
    counts = {name: int(case.size_words.get(str(size), size)) for name, size in case.sizes}
    keys = case.n_tokens if case.key_lengths is None else sum(case.key_lengths)
    counts |= {"t": case.n_tokens + case.slack, KEYS: keys + case.slack, "s": len(case.lengths)}
    forms = dict(case.axes)
    specs = ((name, parse(spec).alternatives) for name, spec in (*op.inputs.items(), *op.outputs.items()))
    return sum(prod(shape(alternatives[forms.get(name, 0)], counts)) for name, alternatives in specs)


def _has_cuda() -> bool:
    import torch  # noqa: PLC0415

    return torch.cuda.is_available()
