"""What a waiting user sees: a live line on a terminal, a line now and then elsewhere, and failures at once."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from packproof.harness.report.events import (
    Cell,
    CellFinished,
    CellStarted,
    Event,
    Failure,
    FailureFound,
    Progress,
    RunFinished,
    RunStarted,
    Verdict,
)
from packproof.harness.report.formats.live import ProgressLine, duration_text
from packproof.harness.report.formats.terminal import TerminalReport

FIRST, SECOND = (Cell("ssd", "m:ssd", law, "bfloat16", "cpu") for law in ("reference", "packing"))
PASSED = Verdict(FIRST, "eager", "passed", 40, 2.0, judged=40)
FOUND = Failure((0, 5, 0, 7), "y", ("bf16, seed 0", "sequence 1, token 0: got 1, alone 2"), 3, 0)
FAILING = Verdict(SECOND, "eager", "failed", 3, 1.0, judged=3, failure=FOUND)
FAILED = replace(FAILING, failure=replace(FOUND, lengths=(1, 1), cases_tried=9))


class Clock:
    """Seconds that pass when told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A report on a console of this width, and what it has printed since the last look."""

    def __init__(self, *, is_terminal: bool, width: int = 120) -> None:
        self.clock, self._out = Clock(), io.StringIO()
        console = Console(
            file=self._out, force_terminal=is_terminal, color_system=None, highlight=False, markup=False, width=width
        )
        self.report = TerminalReport(console, clock=self.clock)
        self.report(RunStarted((FIRST, SECOND), "quick", 0))
        self.look()

    def send(self, *events: Event, after: float = 0.0) -> str:
        self.clock.now += after
        for event in events:
            self.report(event)
        return self.look()

    def look(self) -> str:
        text = self._out.getvalue()
        self._out.seek(0)
        self._out.truncate()
        return text


def test_the_line_says_how_far_the_run_is() -> None:
    clock = Clock()
    line = ProgressLine(clock)
    line(RunStarted((FIRST, SECOND), "quick", 0))
    assert str(line) == "0 of 2 cells"
    line(Progress(FIRST, 10, 40, (1, 2, 3, 4, 5, 6, 7)))
    clock.now = 1
    assert str(line) == "0 of 2 cells · reference bf16 [1, 2, 3, ... 4 more]"  # too soon for a rate
    clock.now = 5
    assert str(line) == "0 of 2 cells, 2.0 examples/s, about 40 s left · reference bf16 [1, 2, 3, ... 4 more]"
    line(Progress(SECOND, 10, 20, (5,)))
    assert line.seconds_left == pytest.approx((40 + 20 - 20) / 4)
    line(CellFinished(PASSED))
    assert str(line) == "1 of 2 cells, 10 examples/s, about 1 s left · packing bf16 [5]"
    line(FailureFound(FAILING))
    assert str(line).endswith("packing bf16, looking for the smallest layout")


def test_cells_are_counted_as_the_first_and_the_last_line_count_them() -> None:
    """Those of a question to the kernel are no part of them."""
    question = replace(PASSED, cell=replace(FIRST, unpromised="NaN", counts=False))
    line = ProgressLine(Clock())
    line(RunStarted((FIRST, SECOND, question.cell), "quick", 0))
    line(CellFinished(question))
    assert str(line) == "0 of 2 cells"
    line(CellFinished(PASSED))
    assert str(line) == "1 of 2 cells"


def test_a_cell_without_a_plan_leaves_the_end_open() -> None:
    clock = Clock()
    line = ProgressLine(clock)
    line(RunStarted((FIRST,), "quick", 0))
    clock.now = 4
    assert line.seconds_left is None
    line(Progress(FIRST, 4))
    assert str(line) == "0 of 1 cell, 1.0 examples/s, about 1 s left · reference bf16"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "1 s"), (7.6, "8 s"), (42, "40 s"), (100, "2 min"), (3600, "60 min"), (7200, "2 h")]
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration_text(seconds) == words


def test_without_a_terminal_a_quiet_run_shows_that_it_goes_on() -> None:
    run = Watched(is_terminal=False)
    assert run.send(CellStarted(FIRST), Progress(FIRST, 0, 40, (1,)), after=1) == ""
    assert run.send(Progress(FIRST, 30, 40, (5,)), after=9) == (
        "0 of 2 cells, 3.0 examples/s, about 20 s left · reference bf16 [5]\n"
    )
    assert run.send(Progress(FIRST, 31, 40, (5,)), after=9) == ""
    assert run.send(CellFinished(PASSED)).startswith("passed   ssd reference bf16")
    assert run.send(Progress(SECOND, 1, 40, (5,)), after=9) == ""  # ten seconds since a line of any kind
    assert run.send(Progress(SECOND, 2, 40, (5,)), after=1).startswith("1 of 2 cells")


def test_a_terminal_has_one_live_line_cut_to_its_width() -> None:
    run = Watched(is_terminal=True, width=60)
    run.send(Progress(FIRST, 30, 40, tuple(range(5))), after=10)
    run.report._live.refresh()  # type: ignore[union-attr]
    shown = run.look()
    assert "0 of 2 cells, 3.0 examples/s, about 20 s left · reference" in shown
    assert "…" in shown
    assert "bf16 [0, 1" not in shown
    assert "\n" not in shown.strip("\n")
    end = run.send(RunFinished((PASSED, FAILED), 12.0))
    assert "a property does not hold: 1 failed, 1 passed" in end


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_failure_is_shown_before_it_is_small(is_terminal: bool) -> None:
    run = Watched(is_terminal=is_terminal)
    early = run.send(FailureFound(FAILING))
    assert (
        "failing  ssd packing bf16 (y): lengths [0, 5, 0, 7]; looking for the smallest layout\n"
        "         sequence 1, token 0: got 1, alone 2\n"
    ) in early
    assert "lengths [1, 1]" in run.send(CellFinished(FAILED))
    run.send(RunFinished((FAILED,), 1.0))


def test_a_failure_that_does_not_count_is_not_announced() -> None:
    run = Watched(is_terminal=False)
    cell = replace(SECOND, unpromised="NaN", counts=False)
    assert run.send(FailureFound(replace(FAILING, cell=cell))) == ""


def test_cells_that_were_not_reached_have_no_line_of_their_own() -> None:
    run = Watched(is_terminal=False)
    verdicts = tuple(
        Verdict(cell, "eager", "inconclusive", 0, 0.0, reason="stopped after the first failure")
        for cell in (FIRST, SECOND)
    )
    assert run.send(*map(CellFinished, verdicts)) == ""
    assert "  reference, packing: stopped after the first failure\n" in run.send(RunFinished(verdicts, 1.0))


def test_where_the_time_went_is_shown_on_request() -> None:
    end = RunFinished((PASSED,), 5.0, timings={"kernel": 1.0, "reference": 3.0})
    shown = []
    for timings in (False, True):
        out = io.StringIO()
        report = TerminalReport(Console(file=out, width=120), timings=timings)
        report(RunStarted((FIRST,), "quick", 0))
        report(end)
        shown.append(out.getvalue())
    block = (
        "where the time went, 4.0 s over all processes:\n  reference      3.00 s   75%\n  kernel         1.00 s   25%\n"
    )
    assert [block in text for text in shown] == [False, True]
