"""A run with a budget of time: what it does not reach is inconclusive, and where its time went."""

import contextlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import pytest

from packproof.base.errors import OutOfTime, UsageError
from packproof.cli import main
from packproof.harness.check.check import run_check
from packproof.harness.check.plan import Plan, plan
from packproof.harness.check.request import CheckRequest
from packproof.harness.check.schedule import run_plan, time_share, trial_seconds
from packproof.harness.check.targets.target import CheckTarget, open_target, worker_for
from packproof.harness.check.unit import run_unit
from packproof.harness.process.sharing import CoreTime, exclusive_device
from packproof.harness.process.worker import Worker
from packproof.harness.report.events import CellFinished, Event, FailureFound, RunFinished
from packproof.properties.cases.layouts import BOUNDARY_CLASSES

OP = f"{Path(__file__).parents[1] / 'rogues_op.py'}:SCALED"
SLOW = "import time\ndef scaled(x, weight, *, cu_seqlens):\n    time.sleep(0.1)\n    return x * weight"


pytestmark = pytest.mark.usefixtures("working_folder")


T = TypeVar("T")


def request(source: str, **settings: object) -> CheckRequest:
    Path("mine.py").write_text(source + "\n")
    given = {"device": "cpu", "dtypes": ("float32",), "profile": "quick", "questions": False, **settings}
    return CheckRequest("mine.py:scaled", op=OP, **given)  # type: ignore[arg-type]


def run(source: str, **settings: object) -> list[Event]:
    return list(run_check(request(source, **settings)))


def planned(source: str, kind: type[CheckTarget] = CheckTarget, **settings: object) -> Plan:
    """The plan for a kernel, whose processes are those of this kind of target."""
    target = open_target(request(source, **settings))
    return plan(target.request, [kind(**{field.name: getattr(target, field.name) for field in fields(target)})])


def with_enough_time(run_within: Callable[[float], T], is_begun: Callable[[T], bool]) -> T:
    """What a run gives in the first of these times, in seconds, in which it begins all it should: machines are busy.

    The kernel of such a run has to take longer in a longer time.
    """
    for seconds in (3.0, 12.0, 48.0):
        if is_begun(outcome := run_within(seconds)):
            return outcome
    raise AssertionError(f"not begun within {seconds:g} s")


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Here one unit runs at a time."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def last(events: list[Event]) -> RunFinished:
    assert isinstance(events[-1], RunFinished)
    return events[-1]


@pytest.mark.proof
def test_what_is_not_reached_is_inconclusive_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--device", "cpu", "--dtype", "fp64,fp32", "--property", "reference,strides", "--profile", "quick"]

    def run_within(seconds: float) -> dict[str, Any]:
        Path("mine.py").write_text(SLOW.replace("0.1", str(seconds / 20)) + "\n")
        reports = ["--max-time", f"{seconds:g}s", "--json", "r.json", "--timings"]
        with one_core():  # the second dtype has to wait
            assert main.run(["check", "mine.py:scaled", "--op", OP, *options, *reports]) == 4
        document: dict[str, Any] = json.loads(Path("r.json").read_text())
        assert document["seconds"] < seconds + 30  # what a call may take that is open then
        return document

    def begins_both(document: dict[str, Any]) -> bool:
        return {result["dtype"] for result in document["results"] if result["examples"]} == {"float64", "float32"}

    document = with_enough_time(run_within, begins_both)
    assert document["verdict"] == "inconclusive"
    assert document["finished"]
    assert len(document["results"]) == document["planned"] == 4
    for result in document["results"]:
        assert result["status"] == "inconclusive"
        assert result["examples"] < 21
        assert f"out of time: {result['examples']} example" in result["reason"]
        assert re.search(r"of \d+ reached", result["reason"])
        if result["property"] == "reference":  # the dtypes share the layouts of the other
            assert "of 21 reached" in result["reason"]
            assert set(result.get("missing", ())) >= set(BOUNDARY_CLASSES) - set(result["classes"])
    assert set(document["timings"]) >= {"start", "kernel", "other"}
    assert "where the time went" in capsys.readouterr().out


def test_without_time_for_one_example_every_class_is_missing() -> None:
    for verdict in last(run(SLOW, properties=("reference", "strides"), max_time=1e-9)).verdicts:
        assert (verdict.status, verdict.examples) == ("inconclusive", 0)
        planned = 21 if verdict.cell.property == "reference" else 15  # layouts
        assert verdict.reason == f"out of time: 0 examples of {planned} reached"
        assert set(verdict.missing) >= set(BOUNDARY_CLASSES)


def test_a_quick_check_on_a_cpu_is_bounded_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 4,096 tokens made it take nine minutes."""
    assert planned(SLOW).seconds == 300
    assert planned(SLOW, max_time=1000.0).seconds == 1000
    assert planned(SLOW, profile="standard").seconds == math.inf
    monkeypatch.setattr(sys.modules[Plan.__module__], "_QUICK_SECONDS", 1e-9)
    [verdict] = last(run(SLOW, properties=("reference",))).verdicts
    assert (verdict.status, verdict.reason) == ("inconclusive", "out of time: 0 examples of 21 reached")


class CrowdedWorker(Worker):
    def open(self, *, warm: bool = True) -> None:
        raise OutOfTime("other processes needed the memory of cuda until the time was up")


class CrowdedTarget(CheckTarget):
    def worker(self, deadline: float = math.inf) -> Worker:
        return CrowdedWorker("mine.py:scaled", until=deadline)


def test_who_waits_for_memory_until_the_end_is_not_reached() -> None:
    (unit,) = planned(SLOW, CrowdedTarget, properties=("reference",)).units
    (event,) = run_unit(unit, CoreTime())
    assert isinstance(event, CellFinished)
    assert (event.verdict.status, event.verdict.reason[:15]) == ("inconclusive", "other processes")


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        ((1, 1, 1, 1), (50, 67, 100, 100)),
        ((9, 9, 1, 1), (90, 95, 100, 100)),  # those of one property need less than those of nine
    ],
)
def test_units_share_the_time_of_the_cores(cells: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Each has the share of its cells in what its core has to do, once it begins; the last ones have the rest."""
    shares = [time_share(n, cells[number + 1 :], cores=2) for number, n in enumerate(cells)]
    assert tuple(round(100 * share) for share in shares) == wanted


def test_counterexamples_are_tried_in_a_quarter_of_the_time_that_the_run_took() -> None:
    assert [trial_seconds(run_seconds) for run_seconds in (1.0, 10.0, 100.0)] == [2.0, 2.5, 25.0]


@pytest.mark.proof
def test_what_had_its_share_goes_on_with_what_others_do_not_need() -> None:
    """In the same process, from where it was."""
    source = """
import pathlib, os, time
def scaled(x, weight, *, cu_seqlens):
    with pathlib.Path("calls").open("a") as file:
        print(os.getpid(), str(x.dtype)[6:], file=file)
    time.sleep(SECONDS if x.dtype.itemsize == 8 else 0)
    return x * weight
"""

    def run_within(seconds: float) -> tuple[RunFinished, list[list[str]]]:
        Path("calls").write_text("")
        slow = source.replace("SECONDS", str(seconds / 25))
        with one_core():  # fp32 waits until fp64 has had its share
            end = last(run(slow, dtypes=("float64", "float32"), properties=("reference",), max_time=seconds))
        return end, [line.split() for line in Path("calls").read_text().splitlines()]

    def returns_to_the_first(outcome: tuple[RunFinished, list[list[str]]]) -> bool:
        end, calls = outcome
        return end.verdicts[1].status == "passed" and [dtype for _, dtype in calls[-1:]] == ["float64"]

    end, calls = with_enough_time(run_within, returns_to_the_first)
    order = [dtype for k, (_, dtype) in enumerate(calls) if k == 0 or calls[k - 1][1] != dtype]
    assert order == ["float64", "float32", "float64"]
    assert len({pid for pid, dtype in calls if dtype == "float64"}) == 1
    slow, quick = end.verdicts
    assert slow.seconds < end.seconds - quick.seconds  # what it waited is not its own


def test_a_failure_within_the_time_is_made_small() -> None:
    wrong = SLOW.replace("0.1", "0.02") + " * 2"
    verdicts = last(run(wrong, properties=("reference", "strides"), max_time=60.0)).verdicts
    failures = {verdict.cell.property: verdict.failure for verdict in verdicts if verdict.failure}
    assert "reference" in failures  # beside it that of the call that is traced, where one process has both cells
    assert {failure.lengths for failure in failures.values()} == {(1,)}
    assert any(failure.cases_tried for failure in failures.values())


@pytest.mark.proof
def test_a_run_that_does_not_end_in_time_is_ended() -> None:
    """What was found until then is kept."""
    source = """
import time
def scaled(x, weight, *, cu_seqlens, calls=[]):
    calls.append(None)
    time.sleep(SECONDS if len(calls) > 1 else 0)
    return x * weight * 2
"""

    def run_within(seconds: float) -> list[Event]:
        slow = source.replace("SECONDS", str(2 * seconds))
        return list(run_plan(planned(slow, properties=("reference", "strides"), max_time=seconds), grace=0.0))

    events = with_enough_time(run_within, lambda events: any(isinstance(event, FailureFound) for event in events))
    first, second = last(events).verdicts
    assert first.status == "failed"
    assert first.failure is not None
    assert first.failure.cases_tried == 0
    assert (second.status, second.reason) == ("inconclusive", "out of time before it had a result")


class HastyTarget(CheckTarget):
    """A call may be open for half a second past the end of the run."""

    def worker(self, deadline: float = math.inf) -> Worker:
        return worker_for(self.request, self.kernel, deadline - 19.5)


@pytest.mark.proof
@pytest.mark.usefixtures("all_cores")
def test_a_call_that_does_not_return_in_time_keeps_no_verdict_back() -> None:
    """Nor is it called hung: the kernel had less time than its limit."""
    source = SLOW.replace("time.sleep(0.1)", "time.sleep(0 if len(cu_seqlens) == 2 else 90)")

    def run_within(seconds: float) -> RunFinished:
        plan = planned(source, HastyTarget, properties=("reference", "strides"), max_time=seconds, timeout=90.0)
        return last(list(run_plan(plan)))

    end = with_enough_time(run_within, lambda end: all(verdict.examples for verdict in end.verdicts))
    assert end.seconds < 80
    for verdict in end.verdicts:
        assert verdict.status == "inconclusive"
        assert verdict.judged == verdict.examples == 1
        assert verdict.reason.startswith("out of time: 1 example of ")


def test_waiting_for_the_memory_of_a_device_ends_with_the_time() -> None:
    with exclusive_device("cuda:test"), pytest.raises(OutOfTime), exclusive_device("cuda:test", time.monotonic() + 0.1):
        pass
    with exclusive_device("cuda:test", time.monotonic()):
        pass


def test_the_time_has_to_be_above_zero() -> None:
    with pytest.raises(UsageError, match=r"^max_time is 0, an int; expected a number of seconds above zero$"):
        list(run_check(CheckRequest(max_time=0)))


def test_timings_add_up_to_the_time_of_the_unit() -> None:
    end = last(run(SLOW, properties=("reference",)))
    timings = dict(end.timings)
    assert timings["kernel"] > 0.09 * end.verdicts[0].judged
    start = timings.pop("start")
    assert sum(timings.values()) <= end.seconds
    assert sum(timings.values()) + start > 0.9 * end.seconds
    assert timings["other"] < 0.2 * sum(timings.values())
