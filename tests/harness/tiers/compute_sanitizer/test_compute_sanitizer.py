"""The sanitizer tier without NVIDIA's program: reports are read, and findings are verdicts with kernel and layout."""

import os
import stat
import sys
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.cli.main import run
from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import CellFinished, Verdict
from packproof.harness.tiers.compute_sanitizer.cell import require_sanitizer
from packproof.harness.tiers.compute_sanitizer.findings import error_count, findings
from tests.harness import sanitizer_reports as reports

HERE = Path(__file__).parents[2]

# runs the given command on the CPU, and prints a report after the announcement of one call
FAKE = """\
#!{python}
import subprocess, sys, os
command = sys.argv[sys.argv.index({python!r}):]
command[-1] = "cpu"
print("arguments", *sys.argv[1 : sys.argv.index({python!r})])
print("========= COMPUTE-SANITIZER", flush=True)
process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
for line in process.stdout:
    print(line, end="", flush=True)
    if line.startswith('packproof {{"call": {call}}}'):
        print({report!r}, flush=True)
{end}
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


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, call: int, report: str, end: str) -> None:
    """Put a fake on PATH, and let a check on the CPU count as one on a GPU until it would start a kernel."""
    fake = folder / "compute-sanitizer"
    fake.write_text(FAKE.format(python=sys.executable, call=call, report=report, end=end))
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    face = "packproof.harness.tiers.compute_sanitizer"
    monkeypatch.setattr(f"{face}.require_sanitizer", lambda device: require_sanitizer("cuda"))
    monkeypatch.chdir(folder)


def _verdict(name: str = "good", **changes: str) -> Verdict:
    request = CheckRequest(
        target=f"{HERE / 'rogues.py'}:{name}",
        op=f"{HERE / 'rogues_op.py'}:SCALED",
        dtypes=("float32",),
        sanitizer="memcheck",
        **changes,  # type: ignore[arg-type]
    )
    (finished,) = [event for event in run_check(request) if isinstance(event, CellFinished)]
    return finished.verdict


CLEAN_END = 'print("========= ERROR SUMMARY: 0 errors")'


def test_a_finding_fails_the_kernel_and_names_the_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = "\n".join(reports.MEMCHECK.splitlines()[1:-1])
    _install(tmp_path, monkeypatch, call=3, report=report, end='print("========= ERROR SUMMARY: 2 errors")')
    verdict = _verdict()
    assert (verdict.status, verdict.tier, verdict.cell.property) == ("failed", "sanitizer", "memcheck")
    failure = verdict.failure
    assert failure is not None
    assert failure.example == 4
    assert failure.lengths == _golden_lengths()[3]
    assert failure.lines[1] == "Invalid __global__ write of size 4 bytes in _scale_kernel (kernels.py:41), 2 times"
    assert "    Access to 0x7f1f2c00080c is out of bounds" in failure.lines


def _golden_lengths() -> list[tuple[int, ...]]:
    from packproof.properties.cases.space import Space, golden_cases  # noqa: PLC0415
    from packproof.properties.declarations.promises import Promises  # noqa: PLC0415
    from tests.harness.rogues_op import SCALED  # noqa: PLC0415

    return [case.lengths for case in golden_cases(Space(SCALED, "float32", Promises()))]


def test_a_clean_run_passes_and_names_its_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch, call=-1, report="", end=CLEAN_END)
    verdict = _verdict()
    assert (verdict.status, verdict.examples) == ("passed", len(_golden_lengths()))
    declined = _verdict("declines")
    assert (declined.status, declined.refused) == ("inconclusive", len(_golden_lengths()))
    assert declined.reason == "the kernel declined every example"


def test_a_fault_without_a_finding_fails_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch, call=-1, report="", end=CLEAN_END)
    failure = _verdict("raises").failure
    assert failure is not None
    assert failure.lines[1].startswith("ValueError: only even (rogues.py")


@pytest.mark.parametrize("end", ["", 'print("========= ERROR SUMMARY: 3 errors")'])
def test_a_run_that_is_not_understood_gives_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    _install(tmp_path, monkeypatch, call=-1, report="", end=end)
    verdict = _verdict()
    assert verdict.status == "error"
    assert "compute-sanitizer did not finish cleanly; its last lines:" in verdict.reason


def test_without_the_program_or_a_gpu_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "--device", "cpu", "--sanitizer", "memcheck"]) == 2
    assert capsys.readouterr().err == (
        "packproof: --sanitizer: compute-sanitizer checks kernels on a GPU, not on cpu; use --device cuda\n"
    )
    assert run(["check", "--device", "cpu", "--sanitizer", "memchek"]) == 2
    assert "memcheck" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match=r"^--sanitizer: there is no compute-sanitizer on PATH"):
        require_sanitizer("cuda")
