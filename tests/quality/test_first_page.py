"""The first page of a report holds what is needed to mend the kernel; one fault has one block, two have two."""

import io
import re
import shutil
from pathlib import Path
from textwrap import wrap

import pytest
from rich.console import Console

from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import RunFinished, Verdict
from packproof.harness.report.formats.terminal import TerminalReport
from tests.quality import faulty_kernels
from tests.sweeps import sweep

_LINES, _COLUMNS = 40, 80
_REPLAY = "packproof replay .packproof/"

FIRST_PAGES = {
    "tile_leak": (
        "lengths [64, 1]",
        "y is wrong in row 64 of the pack",
        "y in sequence 1 contains sequence 0",
        _REPLAY,
    ),
    "wrong_gradient": ("gradient of weight", "lengths [1]", "each wrong element is 2 x the reference", _REPLAY),
    # what lies in memory that was never written decides which small layouts fail
    "unwritten_row": (r"lengths \[\d+(, \d+)*\]", r"y was never written in row \d+ of the pack", _REPLAY),
    "slack_rows": (
        "lengths [1]",
        "slack 1",
        "of the pack",
        "slack is rows past the last sequence",
        "--domain 'slack == 0'",
        _REPLAY,
    ),
    "refuses_lengths": (
        "refused  lengths [1]",
        "expected multiples of 16 (faulty_kernels.py:",
        "--domain 'length % 16 == 0'",
    ),
}
# what one dtype finds is tried in the others, and is one block; of the rest, fp32
BOTH = ("float32", "bfloat16")
DTYPES = {
    "tile_leak": BOTH,
    "unwritten_row": BOTH,
    "slack_rows": BOTH,
    "tile_leak_and_wrong_gradient": BOTH,
}
FAULTS = {
    "refuses_lengths": 0,
    "tile_leak": 1,
    "unwritten_row": 1,
    "unwritten_row_twice_differentiable": 1,
    "wrong_gradient": 1,
    "slack_rows": 1,
    "slack_rows_and_tile_leak": 2,
    "tile_leak_and_wrong_gradient": 2,
    "tile_leak_and_unwritten_row": 2,
}


SAMPLE = ["slack_rows_and_tile_leak"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(str(faulty_kernels.__file__), tmp_path)
    monkeypatch.chdir(tmp_path)


def reported(name: str, dtypes: tuple[str, ...]) -> tuple[str, tuple[Verdict, ...]]:
    """The report of a quick check, and its verdicts."""
    request = CheckRequest(
        f"faulty_kernels.py:{name}",
        op="faulty_kernels.py:RUNNING_SUM",
        dtypes=dtypes,
        properties=("reference", "packing", "isolation", "permutation", "memory", "determinism", "double_backward"),
        profile="quick",
    )
    stream = io.StringIO()
    report = TerminalReport(Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True))
    verdicts = tuple[Verdict, ...]()
    for event in run_check(request):
        report(event)
        verdicts = event.verdicts if isinstance(event, RunFinished) else verdicts
    return stream.getvalue(), verdicts


def first_page(text: str) -> str:
    """The rows that a terminal shows first, joined where it breaks a line."""
    rows = 0
    lines = []
    for line in text.splitlines():
        rows += max(len(wrap(line, _COLUMNS)), 1)
        if rows <= _LINES:
            lines.append(line)
    return "\n".join(lines)


@sweep("name", SAMPLE, [*FAULTS])
def test_each_fault_has_one_block_and_the_first_page_has_what_is_needed_to_mend_the_kernel(name: str) -> None:
    text, verdicts = reported(name, DTYPES.get(name, ("float32",)))
    assert text.count(" · FAILED  ") == FAULTS[name], text
    page = first_page(text)
    for fact in FIRST_PAGES.get(name, ()):
        assert re.search(fact if "\\" in fact else re.escape(fact), page), f"{fact}\n{page}"
    if name == "tile_leak":
        laws = ("reference", "packing", "permutation", "isolation")
        assert {verdict.status for verdict in verdicts if verdict.cell.law in laws} == {"failed"}, text


def test_a_correct_kernel_has_no_block() -> None:
    text, verdicts = reported("correct", ("float32",))
    assert " · FAILED  " not in text
    assert {verdict.status for verdict in verdicts if verdict.cell.counts} == {"passed"}
