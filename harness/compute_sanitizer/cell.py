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

from packproof.harness.compute_sanitizer.findings import Finding, counted, findings
from packproof.harness.compute_sanitizer.program import PREFIX
from packproof.harness.results.events import Cell, CellFinished, CellStarted, Event, Failure, Status, Verdict
from packproof.harness.targets.location import Location
from packproof.harness.worker.wire import call_frame, encode
from packproof.harness.worker.zygote_client import import_path
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.space import Space, golden_cases
from packproof.refs.errors import PackproofError, UsageError

_BINARY = "compute-sanitizer"
_MOST_LINES = 8
_TAIL = 12


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

    by_call: dict[int, list[str]] = field(default_factory=dict)
    """Output lines of each call, by its number: the lines up to the next announcement."""
    refused: set[int] = field(default_factory=set)
    """Numbers of the calls refused by the kernel."""
    fault: str = ""
    """Message of a fault that ended the run, else ""."""
    done: bool = False
    """Whether all calls ran."""


def sanitized_cell(
    cell: Cell, location: Location, space: Space, *, gradients: bool, seed: int, timeout: float
) -> Iterator[Event]:
    """Run the golden cases under the tool named by the cell's property. A finding fails the kernel, with its layout.

    timeout: seconds for all cases.

    Raises PackproofError where the sanitizer itself cannot run.
    """
    yield CellStarted(cell)
    started = time.monotonic()
    cases = list(golden_cases(space, seed))
    output = _output(cell, location, space, cases, gradients=gradients, timeout=timeout)
    run = _read(output)
    found = {k: list(findings(lines)) for k, lines in run.by_call.items()}
    first = next((k for k, these in found.items() if these), None)
    if first is not None:
        failure = _failure(cases[first], first, found[first])
    elif run.fault:
        last = max(run.by_call)
        failure = Failure(cases[last].lengths, "", (cases[last].setting, *run.fault.splitlines()), last + 1, 0)
    elif not run.done or counted(output) is None or counted(output):
        raise PackproofError("\n    ".join([f"{_BINARY} did not finish cleanly; its last lines:", *output[-_TAIL:]]))
    else:
        failure = None
    judged = len(run.by_call) - len(run.refused)
    status: Status = "failed" if failure else "passed" if judged else "inconclusive"
    reason = "" if judged or failure else "the kernel declined every example"
    seconds = time.monotonic() - started
    yield CellFinished(
        Verdict(
            cell,
            "sanitizer",
            status,
            len(run.by_call),
            seconds,
            judged=judged,
            refused=len(run.refused),
            reason=reason,
            failure=failure,
        )
    )


def _failure(case: Case, number: int, found: Sequence[Finding]) -> Failure:
    """The failure of one case: each kind of finding once, with the details of its first one."""
    kinds: dict[str, list[Finding]] = {}
    for finding in found:
        kinds.setdefault(finding.text, []).append(finding)
    lines = [case.setting]
    for text, these in kinds.items():
        lines += [f"{text}, {len(these)} times" if len(these) > 1 else text]
        lines += [f"    {detail}" for detail in these[0].details]
    beyond = len(lines) - 1 - _MOST_LINES
    more = [f"and {beyond} more line{'s' if beyond > 1 else ''}"] if beyond > 0 else []
    return Failure(case.lengths, "", (*lines[: _MOST_LINES + 1], *more), number + 1, 0)


def _output(
    cell: Cell, location: Location, space: Space, cases: Sequence[Case], *, gradients: bool, timeout: float
) -> list[str]:
    """Run the calls of all cases under the sanitizer. Returns its output by line."""
    options = ["--tool", cell.property, "--report-api-errors", "no", "--target-processes", "application-only"]
    place = (location.module, location.file, location.path)
    with tempfile.NamedTemporaryFile(suffix=".calls") as calls:
        for number, case in enumerate(cases):
            calls.write(encode(call_frame(draw(space.op, case).call(gradients=gradients), number)))
        calls.flush()
        program = [
            sys.executable,
            "-P",
            "-m",
            "packproof.harness.compute_sanitizer.program",
            calls.name,
            *place,
            cell.device,
        ]
        # each tensor gets its own allocation, whose end the sanitizer knows
        environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TRITON_INTERPRET": "0"}
        environment["PYTHONPATH"] = os.pathsep.join(import_path())
        try:
            ran = subprocess.run(
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
    return ran.stdout.decode(errors="replace").splitlines()


def _read(output: Sequence[str]) -> _Run:
    run, lines = _Run(), list[str]()
    for text in output:
        if not text.startswith(PREFIX):
            lines.append(text)
            continue
        message = json.loads(text.removeprefix(PREFIX))
        if "call" in message:
            lines = run.by_call[message["call"]] = []
        if "refused" in message:
            run.refused.add(message["refused"])
        run.fault = run.fault or message.get("text", "")
        run.done |= bool(message.get("done"))
    return run
