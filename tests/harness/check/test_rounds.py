"""Bad news first: the order in which cells are judged, and what is sent when a property fails."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from packproof.cli import main
from packproof.harness.check import schedule
from packproof.harness.check.check import run_check
from packproof.harness.check.partition import Unit
from packproof.harness.check.plan import Plan
from packproof.harness.check.request import Allowance, CheckRequest
from packproof.harness.check.rounds import rounds
from packproof.harness.check.shrink import shrink
from packproof.harness.report.events import (
    Cell,
    CellFinished,
    CellStarted,
    Event,
    Failure,
    FailureFound,
    RunFinished,
    Verdict,
)
from packproof.properties.cases.layouts import BOUNDARY_CLASSES
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS

OP = f"{Path(__file__).parents[1] / 'rogues_op.py'}:SCALED"
SPACE = Space(OPS["causal_conv1d"], "float32", Promises())
WRONG_IN_METADATA = """
def scaled(x, weight, *, cu_seqlens):
    return x * weight * (2 if "64" in str(cu_seqlens.dtype) else 1)
"""


pytestmark = pytest.mark.usefixtures("working_folder")


def events(source: str, **settings: object) -> list[Event]:
    Path("mine.py").write_text(source)
    given = {"dtypes": ("float32",), "profile": "quick", "questions": False, **settings}
    return list(run_check(CheckRequest("mine.py:scaled", op=OP, **given)))  # type: ignore[arg-type]


def place(found: list[Event], kind: type, law: str) -> int:
    """Where the event of a kind and property is."""
    verdicts = [getattr(event, "first_verdict", getattr(event, "verdict", event)) for event in found]
    cells = [getattr(verdict, "cell", None) for verdict in verdicts]
    return next(at for at, cell in enumerate(cells) if isinstance(found[at], kind) and cell and cell.property == law)


def test_rounds_have_every_case_once_the_telling_ones_first() -> None:
    golden = list(golden_cases(SPACE))
    other = [case.replace(seed=99) for case in golden]
    found = rounds([*golden, *other, golden[0]], frozenset(golden), SPACE)
    order = [case for cases in found for case in cases]
    assert sorted(order, key=str) == sorted([*golden, *other, golden[0]], key=str)
    assert [len(cases) for cases in found[:4]] == [2, 1, 1, 1]
    assert order[0] == golden[0]
    assert set(order[:5]) <= set(golden)
    assert all(case.n_tokens for case in order[:5])
    assert len(frozenset[str]().union(*map(SPACE.boundary_classes, order[:5]))) > 0.8 * len(BOUNDARY_CLASSES)
    assert [case for case in order if case in other] == other


def test_every_boundary_class_is_met_before_any_is_met_for_nothing() -> None:
    golden = list(golden_cases(SPACE))
    order = [case for cases in rounds(golden, frozenset(golden), SPACE) for case in cases]
    met, new = frozenset[str](), []
    for case in order:
        new.append(bool(SPACE.boundary_classes(case) - met))
        met |= SPACE.boundary_classes(case)
    assert met == set(BOUNDARY_CLASSES)
    assert not any(new[new.index(False) :])
    assert sum(new) < 12


def test_rounds_of_cases_without_a_golden_one() -> None:
    cases = [case.replace(seed=99) for case in golden_cases(SPACE)]
    assert sorted((case for each in rounds(cases, (), SPACE) for case in each), key=str) == sorted(cases, key=str)


def test_a_few_cases_wait_for_the_golden_ones_of_others() -> None:
    golden = list(golden_cases(SPACE))
    counts = [len(cases) for cases in rounds(golden[:2], frozenset(golden), SPACE)]
    assert counts == [*(0,) * (len(counts) - 1), 2]
    assert len(counts) - 1 >= len(rounds(golden, frozenset(golden), SPACE))
    assert not any(rounds([], (), SPACE))


def test_a_bug_that_the_last_property_sees_is_found_before_the_first_one_is_done() -> None:
    found = events(WRONG_IN_METADATA, properties=("packing", "reference", "isolation", "metadata"))
    assert place(found, FailureFound, "metadata") < place(found, CellFinished, "packing")
    assert place(found, CellStarted, "metadata") < place(found, CellFinished, "packing")
    # it is sent before it is made small
    at = place(found, FailureFound, "metadata")
    assert at < place(found, CellFinished, "metadata")
    early = found[at].first_verdict.failure  # type: ignore[union-attr]
    small = found[place(found, CellFinished, "metadata")].verdict.failure  # type: ignore[union-attr]
    assert early is not None
    assert small is not None
    assert early.cases_tried == 0
    assert early.lines[1:]
    assert early.example == small.example
    assert small.cases_tried > 0
    assert sum(small.lengths) <= sum(early.lengths)


def test_the_run_ends_at_the_first_failure(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("def scaled(x, weight, *, cu_seqlens):\n    return x * weight * 2\n")
    call = ["check", "mine.py:scaled", "--op", OP, "--dtype", "fp32,bf16,fp64", "--json", "r.json"]
    assert main.run([*call, "--profile", "quick", "-x"]) == 1
    document = json.loads(Path("r.json").read_text())
    assert document["finished"]
    assert document["verdict"] == "failed"
    assert len(document["results"]) == document["planned"]
    statuses = {r["status"]: r for r in document["results"] if r["property"] != "opcheck"}  # done in no time, beside it
    assert set(statuses) == {"failed", "inconclusive"}
    assert {r["status"] for r in document["results"]} <= {"failed", "inconclusive", "skipped"}
    assert statuses["inconclusive"]["reason"] == "stopped after the first failure"
    assert statuses["failed"]["lengths"]
    assert "inconclusive scaled" not in capsys.readouterr().out  # no line for each cell that was not reached


def test_a_failure_that_does_not_count_ends_no_run() -> None:
    source = """
import torch
def scaled(x, weight, *, cu_seqlens):
    noise = 1 + 2e-8 * torch.rand(x.shape, dtype=torch.float64)
    return (x.double() * weight.double() * noise).to(x.dtype)
"""
    found = events(source, fail_fast=True, questions=True, properties=("reference", "determinism"))
    assert isinstance(found[-1], RunFinished)
    verdicts = {(v.cell.property, v.cell.unpromised): v.status for v in found[-1].verdicts}
    assert verdicts == {
        ("reference", ""): "passed",
        ("determinism", ""): "passed",
        ("determinism", "same bits"): "failed",
    }


def test_a_failure_shrinks_from_the_smallest_case_that_fails_too() -> None:
    """No step of the shrinker leads from the large pack to the small one."""
    golden = list(golden_cases(SPACE))
    large = next(case for case in golden if len(case.lengths) > 30)
    small = next(case for case in golden if case.lengths == (16, 16, 1))
    failing = {large, small}
    assert shrink(large, SPACE, failing.__contains__, Allowance(400, 10))[0] == large
    found, tried = shrink(large, SPACE, failing.__contains__, Allowance(400, 10), golden)
    assert found == small
    assert tried <= 400


def test_an_interrupt_keeps_a_failure_that_is_not_yet_small(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (Cell("scaled", "m:f", law, "float32", "cpu") for law in ("reference", "packing"))
    so_far = Verdict(first, "eager", "failed", 1, 0.1, judged=1, failure=Failure((5, 3), "y", ("wrong",), 1, 0))

    def interrupted(*_: object, **__: object) -> Iterator[Event]:
        yield FailureFound(so_far)
        raise KeyboardInterrupt

    monkeypatch.setattr(schedule, "run_on_every_core", interrupted)
    units = (Unit("evaluate", None, (first, second)),)  # type: ignore[arg-type]
    plan = Plan(CheckRequest(), (first, second), units, ())
    *_, finished, end = schedule.run_plan(plan)
    assert finished == CellFinished(so_far)
    assert isinstance(end, RunFinished)
    assert end.interrupted
    assert end.verdicts == (so_far,)


def test_a_failure_made_small_stays_the_same_error() -> None:
    source = """
def scaled(x, weight, *, cu_seqlens):
    y = x * weight
    if cu_seqlens[-1] == 0:
        raise ValueError("an empty pack")
    if len(cu_seqlens) > 2:
        raise IndexError(f"{len(cu_seqlens)} offsets")
    return y
"""
    found = events(source, properties=("permutation",))
    failures = [event.verdict.failure for event in found if isinstance(event, CellFinished)]
    assert [failure and (failure.lengths, failure.lines[1]) for failure in failures] == [
        ((0, 1), "IndexError: 3 offsets (mine.py:7)")
    ]
