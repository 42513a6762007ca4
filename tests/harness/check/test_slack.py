"""Rows past the last sequence: one finding for a kernel, after which the check goes on without them."""

import itertools
from collections.abc import Callable

import pytest
from torch import Tensor

from packproof.base.names import SLACK
from packproof.harness.check.cell import Evaluator
from packproof.harness.check.check import run_check
from packproof.harness.check.failure import ReplayInfo
from packproof.harness.check.request import Allowance, CheckRequest
from packproof.harness.check.rounds import CaseSelection
from packproof.harness.check.targets.target import CheckTarget
from packproof.harness.check.unit import evaluate_cells
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.report.events import Cell, CellFinished, RunFinished, Verdict
from packproof.harness.report.formats.junit import JunitReport
from packproof.properties.declarations.declaration import Declaration
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from tests.quality import faulty_kernels
from tests.quality.faulty_kernels import RUNNING_SUM, correct, slack_rows, slack_rows_and_tile_leak

_PROPERTIES = ("reference", "packing", "isolation", "permutation", "metadata")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # type: ignore[arg-type]


def judged(kernel: Callable[..., Tensor], *properties: str) -> list[Verdict]:
    request = CheckRequest("m:f", dtypes=("float32",), properties=properties, questions=False)
    target = CheckTarget(request, "m:f", "m:f", RUNNING_SUM, "sum", Declaration(parameters=("x", "weight")))
    cells = [Cell("running_sum", "m:f", name, "float32", "cpu") for name in properties]
    evaluator = Evaluator(
        KernelUnderTest(RUNNING_SUM, InProcess(kernel), Promises()),
        CaseSelection({}),
        Allowance(100, 10),
        ReplayInfo(),
        "eager",
    )
    events = evaluate_cells(target, evaluator, cells)
    return [event.verdict for event in events if isinstance(event, CellFinished)]


def test_a_kernel_that_leaves_slack_as_it_is_has_one_finding() -> None:
    verdicts = judged(slack_rows, *_PROPERTIES)
    [slack] = [v for v in verdicts if v.cell.property == SLACK]
    assert {v.status for v in verdicts if v is not slack} == {"passed"}
    assert slack.status == "failed"
    assert slack.failure is not None
    assert slack.failure.lengths == (1,)
    assert any("slack is rows past the last sequence" in line for line in slack.failure.lines)
    assert any("slack 1" in line for line in slack.failure.lines)


def test_beyond_slack_the_other_fault_is_found() -> None:
    verdicts = {v.cell.property: v for v in judged(slack_rows_and_tile_leak, *_PROPERTIES)}
    assert verdicts[SLACK].status == "failed"
    for name in ("reference", "isolation"):
        failure = verdicts[name].failure
        assert failure is not None
        assert failure.lengths == (64, 1)
        assert not any("slack" in line for line in failure.lines)


def test_a_correct_kernel_keeps_its_slack() -> None:
    slack = list[int]()

    def counting(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        slack.append(len(x) - int(cu_seqlens[-1]))
        return correct(x, weight, cu_seqlens=cu_seqlens)

    verdicts = judged(counting, "isolation")
    assert [(v.cell.property, v.status) for v in verdicts] == [("isolation", "passed")]
    assert max(slack[len(slack) // 2 :]) > 0  # to the end


def test_a_kernel_that_fails_now_and_then_is_not_one_that_fails_by_slack() -> None:
    calls = itertools.count()

    def sometimes(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        return correct(x, weight, cu_seqlens=cu_seqlens) * (2 if next(calls) == 0 else 1)

    assert [v.cell.property for v in judged(sometimes, "isolation")] == ["isolation"]


def test_the_processes_of_a_run_report_slack_once(tmp_path: object) -> None:
    file = f"{faulty_kernels.__file__}"
    request = CheckRequest(
        f"{file}:slack_rows",
        op=f"{file}:RUNNING_SUM",
        dtypes=("float32", "bfloat16"),
        properties=("reference", "packing"),
        profile="quick",
        questions=False,
    )
    report = JunitReport(f"{tmp_path}/junit.xml")
    events = list(run_check(request))
    for event in events:
        report(event)
    end = events[-1]
    assert isinstance(end, RunFinished)
    assert [(v.cell.property, v.status) for v in end.verdicts] == [
        (SLACK, "failed"),
        *[("reference", "passed"), ("packing", "passed")] * 2,
    ]
    assert sum(isinstance(e, CellFinished) and e.verdict.cell.property == SLACK for e in events) == 1
    with open(f"{tmp_path}/junit.xml") as text:
        assert text.read().count("<testcase") == 5
