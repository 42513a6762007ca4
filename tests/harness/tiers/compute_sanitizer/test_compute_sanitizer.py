"""The sanitizer tier without NVIDIA's program: reports are read, and findings are verdicts with kernel and layout."""

import contextlib
import io
import os
import shlex
import sys
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.cli.main import run
from packproof.harness.check.plan import plan
from packproof.harness.check.request import CheckRequest
from packproof.harness.check.targets.target import open_target
from packproof.harness.check.unit import run_unit
from packproof.harness.process import call_frame, encode
from packproof.harness.process.sharing import CoreTime
from packproof.harness.report.events import CellFinished, Verdict
from packproof.harness.tiers.compute_sanitizer import program
from packproof.harness.tiers.compute_sanitizer.cell import require_sanitizer
from packproof.harness.tiers.compute_sanitizer.findings import error_count, findings
from packproof.properties.cases import Case, Space, draw, golden_cases
from packproof.properties.declarations.promises import Promises
from tests.harness import sanitizer_reports as reports
from tests.harness.rogues_op import SCALED
from tests.in_process import environment

HERE = Path(__file__).parents[2]
NO_ERRORS = "========= ERROR SUMMARY: 0 errors"

# runs the command that follows the options, but on the CPU
RUNS = f"""\
#!{sys.executable}
import subprocess, sys
command = sys.argv[sys.argv.index({sys.executable!r}):]
command[-1] = "cpu"
print("========= COMPUTE-SANITIZER", flush=True)
subprocess.run(command)
print({NO_ERRORS!r})
"""


@pytest.mark.parametrize(
    ("report", "texts", "details", "count"),
    [
        (
            reports.MEMCHECK,
            ["Invalid __global__ write of size 4 bytes in _scale_kernel (kernels.py:41)"] * 2,
            "by thread (2,0,0) in block (1,0,0)",
            2,
        ),
        (
            reports.MEMCHECK_OLDER,
            ["Invalid __global__ read of size 8 bytes in sums<(bool)0> (/src/sum.cu:4)"],
            "by thread (0,0,0) in block (0,0,0)",
            1,
        ),
        (
            reports.RACECHECK,
            ["Race reported between Write in sum_blocks (racecheck.cu:12)"],
            "and Read access at sum_blocks(int *, int *)+0xd0 in racecheck.cu:12 [32 hazards]",
            1,
        ),
        (
            reports.INITCHECK,
            ["Uninitialized __global__ memory read of size 4 bytes in vectorAdd (memset_error.cu:41)"],
            "by thread (31,0,0) in block (1,0,0)",
            1,
        ),
        (reports.CLEAN, [], "", 0),
        ("three lines\n= of something\n==== else", [], "", None),
    ],
)
def test_reports_are_read(report: str, texts: list[str], details: str, count: int | None) -> None:
    lines = report.splitlines()
    found = list(findings(lines))
    assert [finding.text for finding in found] == texts
    assert error_count(lines) == count
    if found:
        assert found[0].details[0] == details
        assert not any("Host Frame" in text for finding in found for text in finding.details)


def _golden_cases() -> list[Case]:
    return list(golden_cases(Space(SCALED, "float32", Promises())))


def _output(name: str, n_cases: int = 5) -> str:
    """What the program under the sanitizer prints for a kernel at the first golden cases."""
    frames = [
        encode(call_frame(draw(SCALED, case).call(gradients=True), number))
        for number, case in enumerate(_golden_cases()[:n_cases])
    ]
    calls, printed = Path("calls"), io.StringIO()
    calls.write_bytes(b"".join(frames))
    with contextlib.redirect_stdout(printed):
        program.main(str(calls), "", str(HERE / "rogues.py"), name, "cpu")
    return printed.getvalue()


def _verdict(source: str) -> Verdict:
    """Of a kernel under a compute-sanitizer with this source, first on PATH."""
    Path("bin").mkdir()
    fake = Path("bin/compute-sanitizer").absolute()
    fake.write_text(source)
    fake.chmod(0o755)
    request = CheckRequest(
        target=f"{HERE / 'rogues.py'}:good",
        op=f"{HERE / 'rogues_op.py'}:SCALED",
        device="cpu",
        dtypes=("float32",),
        sanitizer="memcheck",
    )
    target = open_target(request)
    (unit,) = plan(request, [target]).units
    with environment(PATH=f"{fake.parent}{os.pathsep}{os.environ['PATH']}"):
        (finished,) = [event for event in run_unit(unit, CoreTime()) if isinstance(event, CellFinished)]
    return finished.verdict


def _printing(output: str) -> str:
    return f"#!/bin/sh\nprintf %s {shlex.quote(output)}\n"


@pytest.mark.usefixtures("working_folder")
def test_a_finding_fails_the_kernel_and_names_the_layout() -> None:
    report = "\n".join(reports.MEMCHECK.splitlines()[1:-1])
    announcement = f'{program.PREFIX}{{"call": 3}}\n'
    output = _output("good").replace(announcement, f"{announcement}{report}\n")
    verdict = _verdict(_printing(output + "========= ERROR SUMMARY: 2 errors\n"))
    assert (verdict.status, verdict.tier, verdict.cell.property) == ("failed", "sanitizer", "memcheck")
    failure = verdict.failure
    assert failure is not None
    assert failure.example == 4
    assert failure.lengths == _golden_cases()[3].lengths
    assert failure.lines[1] == "Invalid __global__ write of size 4 bytes in _scale_kernel (kernels.py:41), 2 times"
    assert "    Access to 0x7f1f2c00080c is out of bounds" in failure.lines


@pytest.mark.proof
@pytest.mark.usefixtures("working_folder")
def test_a_clean_run_passes_and_names_its_tier() -> None:
    verdict = _verdict(RUNS)
    assert (verdict.status, verdict.tier, verdict.examples) == ("passed", "sanitizer", len(_golden_cases()))


@pytest.mark.usefixtures("working_folder")
def test_a_kernel_that_declines_every_example_gets_no_verdict() -> None:
    verdict = _verdict(_printing(f"{_output('declines')}{NO_ERRORS}\n"))
    assert (verdict.status, verdict.refused) == ("inconclusive", 5)
    assert verdict.reason == "the kernel declined every example"


@pytest.mark.usefixtures("working_folder")
def test_a_fault_without_a_finding_fails_the_kernel() -> None:
    failure = _verdict(_printing(f"{_output('raises')}{NO_ERRORS}\n")).failure
    assert failure is not None
    assert failure.lines[1].startswith("ValueError: only even (rogues.py")


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize("end", ["", "========= ERROR SUMMARY: 3 errors\n"])
def test_a_run_that_is_not_understood_gives_no_verdict(end: str) -> None:
    verdict = _verdict(_printing(_output("good", n_cases=1) + end))
    assert verdict.status == "error"
    assert "compute-sanitizer did not finish cleanly; its last lines:" in verdict.reason


@pytest.mark.usefixtures("working_folder")
def test_a_run_that_ends_before_its_last_call_gives_no_verdict() -> None:
    output = _output("good", n_cases=1).replace(f'{program.PREFIX}{{"done": true}}\n', "")
    assert _verdict(_printing(f"{output}{NO_ERRORS}\n")).status == "error"


def test_without_the_program_or_a_gpu_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--device", "cpu", "--sanitizer", "memcheck"]) == 2
    assert capsys.readouterr().err == (
        "packproof: --sanitizer: compute-sanitizer checks kernels on a GPU, not on cpu; use --device cuda\n"
    )
    assert run(["check", "--device", "cpu", "--sanitizer", "memchek"]) == 2
    assert "memcheck" in capsys.readouterr().err
    with environment(PATH=""), pytest.raises(UsageError, match=r"^--sanitizer: there is no compute-sanitizer on PATH"):
        require_sanitizer("cuda")
