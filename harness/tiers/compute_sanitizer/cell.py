"""The sanitizer cell: the golden cases of a kernel on a GPU under NVIDIA's compute-sanitizer, if it is installed."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from packproof.base.errors import PackproofError, UsageError
from packproof.harness.process import call_frame, encode, import_path
from packproof.harness.process.naming import Location
from packproof.harness.report import Cell, CellFinished, CellStarted, Event, Failure, Status, Verdict
from packproof.harness.tiers.compute_sanitizer.findings import Finding, error_count, findings
from packproof.harness.tiers.compute_sanitizer.program import PREFIX
from packproof.properties.cases import Case, Space, draw, golden_cases

_BINARY = "compute-sanitizer"
_MAX_LINES = 8
_TAIL_LINES = 12


def require_sanitizer(device: str) -> None:
    """Raises UsageError unless compute-sanitizer can run here."""
    if device != "cuda":
        raise UsageError(f"--sanitizer: compute-sanitizer checks kernels on a GPU, not on {device}; use --device cuda")
    if shutil.which(_BINARY) is None:
        raise UsageError(
            f"--sanitizer: there is no {_BINARY} on PATH; it comes with the CUDA toolkit, or as the conda package "
            "cuda-sanitizer-api"
        )


@dataclass
class _Run:
    """The parsed output of a run."""

    lines_by_call: dict[int, list[str]] = field(default_factory=dict)
    """Output lines of each call, by its number: the lines up to the next announcement."""
    refused_calls: set[int] = field(default_factory=set)
    """Numbers of the calls refused by the kernel."""
    fault: str = ""
    """Message of a fault that ended the run, else ""."""
    completed: bool = False
    """Whether all calls ran."""


def sanitize_cell(
    cell: Cell, location: Location, space: Space, *, gradients: bool, seed: int, timeout: float
) -> Iterator[Event]:
    """Run the golden cases under the tool named by the cell's property. A finding fails the kernel, with its layout.

    timeout: seconds for all cases.

    Raises PackproofError where the sanitizer itself cannot run.
    """
    yield CellStarted(cell)
    start_time = time.monotonic()
    cases = list(golden_cases(space, seed))
    output = _run_sanitizer(cell, location, space, cases, gradients=gradients, timeout=timeout)
    run = _parse_output(output)
    findings_by_call = {k: list(findings(lines)) for k, lines in run.lines_by_call.items()}
    failing_call = next((k for k, call_findings in findings_by_call.items() if call_findings), None)
    if failing_call is not None:
        failure = _failure(cases[failing_call], failing_call, _describe_findings(findings_by_call[failing_call]))
    elif run.fault:
        last_call = max(run.lines_by_call)
        failure = _failure(cases[last_call], last_call, run.fault.splitlines())
    elif not run.completed or error_count(output) is None or error_count(output):
        raise PackproofError(
            "\n    ".join([f"{_BINARY} did not finish cleanly; its last lines:", *output[-_TAIL_LINES:]])
        )
    else:
        failure = None
    n_judged = len(run.lines_by_call) - len(run.refused_calls)
    status: Status = "failed" if failure else "passed" if n_judged else "inconclusive"
    reason = "" if n_judged or failure else "the kernel declined every example"
    seconds = time.monotonic() - start_time
    yield CellFinished(
        Verdict(
            cell,
            "sanitizer",
            status,
            len(run.lines_by_call),
            seconds,
            judged=n_judged,
            refused=len(run.refused_calls),
            reason=reason,
            failure=failure,
        )
    )


def _failure(case: Case, call_number: int, lines: Sequence[str]) -> Failure:
    """The failure of one golden case, which is not shrunk."""
    return Failure(case.lengths, tensor="", lines=(case.setting, *lines), example=call_number + 1, cases_tried=0)


def _describe_findings(case_findings: Sequence[Finding]) -> list[str]:
    """Each kind of finding once, with its count and the details of its first occurrence; at most _MAX_LINES lines."""
    kinds: dict[str, list[Finding]] = {}
    for finding in case_findings:
        kinds.setdefault(finding.text, []).append(finding)
    lines = []
    for text, occurrences in kinds.items():
        lines += [f"{text}, {len(occurrences)} times" if len(occurrences) > 1 else text]
        lines += [f"    {detail}" for detail in occurrences[0].details]
    n_hidden = len(lines) - _MAX_LINES
    hidden_text = [f"and {n_hidden} more line{'s' if n_hidden > 1 else ''}"] if n_hidden > 0 else []
    return [*lines[:_MAX_LINES], *hidden_text]


def _run_sanitizer(
    cell: Cell, location: Location, space: Space, cases: Sequence[Case], *, gradients: bool, timeout: float
) -> list[str]:
    """Run the calls of all cases under the sanitizer. Returns its output by line."""
    options = ["--tool", cell.property, "--report-api-errors", "no", "--target-processes", "application-only"]
    location_arguments = (location.module, location.file, location.qualname)
    with tempfile.NamedTemporaryFile(suffix=".calls") as calls:
        for number, case in enumerate(cases):
            calls.write(encode(call_frame(draw(space.op, case).call(gradients=gradients), number)))
        calls.flush()
        program = [
            sys.executable,
            "-P",
            "-m",
            "packproof.harness.tiers.compute_sanitizer.program",
            calls.name,
            *location_arguments,
            cell.device,
        ]
        # each tensor gets its own allocation, whose end the sanitizer knows
        environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TRITON_INTERPRET": "0"}
        environment["PYTHONPATH"] = os.pathsep.join(import_path())
        try:
            process = subprocess.run(
                [_BINARY, *options, *program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PackproofError(f"{_BINARY} --tool {cell.property}: did not finish within {timeout:g} s") from error
    return process.stdout.decode(errors="replace").splitlines()


def _parse_output(output: Sequence[str]) -> _Run:
    run, lines = _Run(), list[str]()
    for text in output:
        if not text.startswith(PREFIX):
            lines.append(text)
            continue
        message = json.loads(text.removeprefix(PREFIX))
        if "call" in message:
            lines = run.lines_by_call[message["call"]] = []
        if "refused" in message:
            run.refused_calls.add(message["refused"])
        run.fault = run.fault or message.get("text", "")
        run.completed |= bool(message.get("done"))
    return run
