"""The judging of one cell and the order of several: directly, with a kernel in this process."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from torch import Tensor

from packproof.base.errors import OutOfTime
from packproof.harness.check.cell import Evaluator
from packproof.harness.check.failure import ReplayInfo
from packproof.harness.check.request import Allowance, CheckRequest
from packproof.harness.check.rounds import CaseSelection
from packproof.harness.check.targets.target import CheckTarget
from packproof.harness.check.unit import alternate, evaluate_cells
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.process.sharing import CoreTime
from packproof.harness.report.events import Cell, CellFinished, CellStarted, Event, FailureFound, Progress, Verdict
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import Declaration
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.property import Property
from packproof.properties.laws.violation import Violation
from tests.harness.rogues_op import SCALED, scaled

SPACE = Space(SCALED, "float32", Promises(), ("x", "weight"))
N_GOLDEN = len(list(golden_cases(SPACE)))


def doubled(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return x * weight * 2


def doubled_in_packs(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return x * weight * (2 if len(cu_seqlens) > 2 else 1)


def small_packs_only(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    if len(x) > 100:
        raise ValueError(f"{len(x)} tokens, expected at most 100")
    return x * weight


def cell(name: str, unpromised: str = "", *, counts: bool = True) -> Cell:
    return Cell("scaled", "m:f", name, "float32", "cpu", unpromised, counts)


def evaluator(kernel: Callable[..., Tensor] = scaled, core_time: CoreTime | None = None) -> Evaluator:
    return Evaluator(
        KernelUnderTest(SCALED, InProcess(kernel), Promises()),
        CaseSelection({}),
        Allowance(20, 5),
        ReplayInfo(),
        "eager",
        core_time or CoreTime(),
    )


def law(name: str, check: Callable[[KernelUnderTest, Case], Iterator[Violation]] | None = None) -> Property:
    return replace(PROPERTIES["reference"], name=name, check=check or PROPERTIES["reference"].check)


def verdict(events: list[Event | None]) -> Verdict:
    assert isinstance(events[-1], CellFinished)
    return events[-1].verdict


def kinds(events: list[Event | None]) -> list[type]:
    return [type(event) for event in events if not isinstance(event, Progress)]


pytestmark = pytest.mark.usefixtures("working_folder")


def test_a_cell_pauses_after_each_round_and_ends_with_its_verdict() -> None:
    shared, reference = evaluator(), law("reference")
    events = list(shared.run_cell(cell("reference"), reference, SPACE))
    n_rounds = len([cases for cases in shared.selection.rounds(reference, SPACE, "eager") if cases])
    assert kinds(events) == [CellStarted, *[type(None)] * (n_rounds - 1), CellFinished]
    passed = verdict(events)
    assert (passed.status, passed.tier, passed.judged, passed.examples) == ("passed", "eager", N_GOLDEN, N_GOLDEN)


def test_a_violation_is_announced_before_it_is_shrunk() -> None:
    events = list(evaluator(doubled).run_cell(cell("reference"), law("reference"), SPACE))
    assert kinds(events) == [CellStarted, FailureFound, CellFinished]
    first = next(event.first_verdict for event in events if isinstance(event, FailureFound))
    assert first.failure is not None
    assert first.failure.cases_tried == 0
    failure = verdict(events).failure
    assert failure is not None
    assert failure.cases_tried > 0
    assert failure.lengths == (1,)


def test_a_failure_that_no_time_is_left_to_shrink_stands_as_it_was_found() -> None:
    judged: list[Case] = []

    def check(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
        judged.append(case)
        if len(judged) > 1:
            raise OutOfTime("the time of the run was up")
        yield Violation(text="incorrect")

    failure = verdict(list(evaluator().run_cell(cell("reference"), law("reference", check), SPACE))).failure
    assert failure is not None
    assert failure.lines[-1] == "not made small: the time of the run was up"


def test_after_a_refusal_every_cell_begins_again_in_the_inferred_domain() -> None:
    shared = evaluator(small_packs_only)
    names = ("reference", "strides")
    events = list(alternate((cell(name), shared.run_cell(cell(name), PROPERTIES[name], SPACE)) for name in names))
    assert shared.inferred is not None
    verdicts = [event.verdict for event in events if isinstance(event, CellFinished)]
    assert [v.cell.property for v in verdicts] == ["strides", "reference"]
    for v in verdicts:
        assert v.status == "passed"
        assert v.refused == 0
        assert v.domain == shared.inferred.domain.texts != ()
    met_refusal = verdicts[-1]  # the other cell had no larger pack before it began again
    assert "tokens, expected at most 100" in met_refusal.limits[0].text


def test_cases_not_reached_in_time_are_counted() -> None:
    events = list(evaluator(core_time=CoreTime(deadline=0.0)).run_cell(cell("reference"), law("reference"), SPACE))
    late = verdict(events)
    assert (late.status, late.examples) == ("inconclusive", 0)
    assert late.reason == f"out of time: 0 examples of {N_GOLDEN} reached"


def test_a_case_without_time_is_repeated_in_the_next_round() -> None:
    judged: list[Case] = []

    def check(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
        judged.append(case)
        if len(judged) == 2:
            raise OutOfTime("later")
        yield from PROPERTIES["reference"].check(kernel, case)

    events = list(evaluator().run_cell(cell("reference"), law("reference", check), SPACE))
    assert judged[1] == judged[2]
    assert len(judged) == N_GOLDEN + 1
    assert (verdict(events).status, verdict(events).examples) == ("passed", N_GOLDEN)


def rounds_of(name: str, n_rounds: int) -> tuple[Cell, Iterator[Event | None]]:
    def events() -> Iterator[Event | None]:
        for number in range(n_rounds):
            yield Progress(cell(name), number)
            if number < n_rounds - 1:
                yield None

    return cell(name), events()


def test_cells_alternate_round_by_round() -> None:
    events = list(alternate([rounds_of("a", 3), rounds_of("b", 1), rounds_of("c", 2)]))
    order = [(event.cell.property, event.examples) for event in events if isinstance(event, Progress)]
    assert order == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("c", 1), ("a", 2)]


def test_a_fault_in_one_cell_is_its_verdict_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Iterator[Event | None]:
        yield None
        raise RuntimeError("oops")

    events = list(alternate([(cell("a"), broken()), rounds_of("b", 2)]))
    assert [type(event) for event in events] == [Progress, CellFinished, Progress]
    assert isinstance(events[1], CellFinished)
    assert events[1].verdict.reason == "packproof itself failed: RuntimeError: oops"
    assert "oops" in capsys.readouterr().err


def evaluation(kernel: Callable[..., Tensor], *properties: Property, questions: tuple[Cell, ...]) -> list[Event]:
    request = CheckRequest("m:f", dtypes=("float32",), properties=properties)
    target = CheckTarget(request, "m:f", "m:f", SCALED, "scaled", Declaration(parameters=("x", "weight")))
    cells = [*map(cell, request.laws), *questions]
    return list(evaluate_cells(target, evaluator(kernel), cells))


def test_memory_filling_cells_run_after_the_others_and_unpromised_ones_last() -> None:
    question = cell("determinism", "same bits", counts=False)
    large = replace(law("large"), fills_memory=True)
    events = evaluation(scaled, large, law("small"), PROPERTIES["determinism"], questions=(question,))
    cells = [event.verdict.cell for event in events if isinstance(event, CellFinished)]
    assert cells[-2:] == [cell("large"), question]
    started = [event.cell for event in events if isinstance(event, CellStarted)]
    assert started == [cell("small"), cell("determinism"), cell("large"), question]


def test_the_unpromised_form_of_a_property_that_failed_is_skipped() -> None:
    question = cell("packing", "same bits", counts=False)

    events = evaluation(doubled_in_packs, PROPERTIES["packing"], questions=(question,))
    first, last = (event.verdict for event in events if isinstance(event, CellFinished))
    assert first.status == "failed"
    assert (last.cell, last.status, last.reason) == (question, "skipped", "packing failed")
