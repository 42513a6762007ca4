"""A run with a budget of time: what it does not reach is inconclusive, and where its time went."""

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.cli import main
from packproof.harness.check import schedule
from packproof.harness.check import unit as engine_unit
from packproof.harness.check.check import run_check
from packproof.harness.check.plan import plan
from packproof.harness.check.request import CheckRequest
from packproof.harness.check.targets.target import open_target
from packproof.harness.process.sharing import CoreTime, exclusive_device
from packproof.harness.process.worker import Worker
from packproof.harness.report.events import CellFinished, Event, FailureFound, RunFinished
from packproof.properties.calling.call import OutOfTime
from packproof.properties.cases.layouts import BOUNDARY_CLASSES

OP = f"{Path(__file__).parents[1] / 'rogues_op.py'}:SCALED"
SLOW = "import time\ndef scaled(x, weight, *, cu_seqlens):\n    time.sleep(0.1)\n    return x * weight"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(source: str, **settings: object) -> list[Event]:
    Path("mine.py").write_text(source + "\n")
    given = {"dtypes": ("float32",), "profile": "quick", "questions": False, **settings}
    return list(run_check(CheckRequest("mine.py:scaled", op=OP, **given)))  # type: ignore[arg-type]


def last(events: list[Event]) -> RunFinished:
    assert isinstance(events[-1], RunFinished)
    return events[-1]


def test_what_is_not_reached_is_inconclusive_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})  # the second dtype has to wait
    Path("mine.py").write_text(SLOW + "\n")
    call = [
        "check",
        "mine.py:scaled",
        "--op",
        OP,
        "--device",
        "cpu",
        "--dtype",
        "fp64,fp32",
        "--property",
        "reference,strides",
    ]
    assert main.run([*call, "--profile", "quick", "--max-time", "2s", "--json", "r.json", "--timings"]) == 4
    document = json.loads(Path("r.json").read_text())
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
    assert {r["dtype"] for r in document["results"] if r["examples"]} == {"float64", "float32"}
    assert document["seconds"] < 10
    assert set(document["timings"]) >= {"start", "kernel", "other"}
    assert "where the time went" in capsys.readouterr().out


def test_without_time_for_one_example_every_class_is_missing() -> None:
    for verdict in last(run(SLOW, properties=("reference", "strides"), max_time=1e-9)).verdicts:
        assert (verdict.status, verdict.examples) == ("inconclusive", 0)
        planned = 21 if verdict.cell.property == "reference" else 15  # layouts
        assert verdict.reason == f"out of time: 0 examples of {planned} reached"
        assert set(verdict.missing) >= set(BOUNDARY_CLASSES)


def test_who_waits_for_memory_until_the_end_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def crowded(worker: Worker, *, warm: bool = True) -> None:
        raise OutOfTime("other processes needed the memory of cuda until the time was up")

    Path("mine.py").write_text(SLOW + "\n")
    request = CheckRequest("mine.py:scaled", op=OP, device="cpu", dtypes=("float32",), properties=("reference",))
    target = open_target(replace(request, questions=False))
    monkeypatch.setattr(Worker, "open", crowded)
    (unit,) = plan(target.request, [target]).units
    (event,) = engine_unit.run_unit(unit, CoreTime())
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
    shares = [schedule.time_share(n, cells[number + 1 :], cores=2) for number, n in enumerate(cells)]
    assert tuple(round(100 * share) for share in shares) == wanted


def test_what_had_its_share_goes_on_with_what_others_do_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same process, from where it was."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})  # fp32 waits until fp64 has had its share
    source = """
import pathlib, os, time
def scaled(x, weight, *, cu_seqlens):
    with pathlib.Path("calls").open("a") as file:
        print(os.getpid(), str(x.dtype)[6:], file=file)
    time.sleep(0.15 if x.dtype.itemsize == 8 else 0)
    return x * weight
"""
    end = last(run(source, dtypes=("float64", "float32"), properties=("reference",), max_time=4.0))
    calls = [line.split() for line in Path("calls").read_text().splitlines()]
    order = [dtype for k, (_, dtype) in enumerate(calls) if k == 0 or calls[k - 1][1] != dtype]
    assert order == ["float64", "float32", "float64"]
    assert len({pid for pid, dtype in calls if dtype == "float64"}) == 1
    slow, quick = end.verdicts
    assert quick.status == "passed"
    assert slow.seconds < end.seconds - quick.seconds  # what it waited is not its own


def test_a_failure_within_the_time_is_made_small() -> None:
    wrong = SLOW.replace("0.1", "0.02") + " * 2"
    verdicts = last(run(wrong, properties=("reference", "strides"), max_time=4.0)).verdicts
    failure = verdicts[0].failure
    assert failure is not None
    assert failure.lengths == (1,)
    assert failure.cases_tried


def test_a_run_that_does_not_end_in_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found until then is kept."""
    monkeypatch.setattr(schedule, "_GRACE", 0.0)
    source = """
import time
def scaled(x, weight, *, cu_seqlens, calls=[]):
    calls.append(None)
    time.sleep(5 if len(calls) > 1 else 0)
    return x * weight * 2
"""
    events = run(source, properties=("reference", "strides"), max_time=3.0)
    assert any(isinstance(event, FailureFound) for event in events)
    first, second = last(events).verdicts
    assert first.status == "failed"
    assert first.failure is not None
    assert first.failure.cases_tried == 0
    assert (second.status, second.reason) == ("inconclusive", "out of time before it had a result")


def test_a_call_that_does_not_return_in_time_keeps_no_verdict_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it called hung: the kernel had less time than its limit."""
    monkeypatch.setattr(engine_unit, "_LAST_CALL", 0.5)
    source = SLOW.replace("time.sleep(0.1)", "time.sleep(0 if len(cu_seqlens) == 2 else 60)")
    end = last(run(source, properties=("reference", "strides"), max_time=3.0))
    assert end.seconds < 15
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
