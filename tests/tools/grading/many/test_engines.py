"""The loop around the grades in flight, and the processes of this machine."""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import pytest

from packproof.base.errors import PackproofError
from packproof.grading.many import engines
from packproof.grading.many.alone import LostGradeError
from packproof.grading.many.engines import MOST_LOSSES, LocalEngine, outcomes
from packproof.grading.many.job import GradeJob, GradeOutcome


@dataclass
class LastFirst:
    """An engine in which what was started last is done first."""

    capacity: int = 3
    device: str = "cpu"
    cores: int = 1
    in_flight: list[str] = field(default_factory=list)
    most: int = 0

    def start(self, job: GradeJob) -> str:
        self.in_flight.append(job.submission)
        self.most = max(self.most, len(self.in_flight))
        return job.submission

    def wait(self, tickets: Collection[str]) -> str:
        assert set(tickets) == set(self.in_flight)
        return self.in_flight.pop()

    def outcome(self, ticket: str) -> GradeOutcome:
        if ticket == "2":
            raise PackproofError("its host is gone")
        return GradeOutcome(0, ticket)

    def close(self) -> None:
        pass


def test_few_grades_are_in_flight_and_each_comes_once_as_it_is_done() -> None:
    asked: list[int] = []

    def jobs() -> Iterator[tuple[str, GradeJob]]:
        for number in range(8):
            asked.append(number)
            yield f"name {number}", GradeJob(str(number), ())

    engine = LastFirst()
    stream = outcomes(engine, jobs())
    assert next(stream)[0] == "name 2"
    assert asked == [0, 1, 2]
    names = ["name 2", *(name for name, _ in stream)]
    assert engine.most == 3
    assert names == [f"name {number}" for number in (2, 3, 4, 5, 6, 7, 1, 0)]


def test_what_was_not_made_is_an_error_and_ends_nothing() -> None:
    ends = dict(outcomes(LastFirst(), [(str(n), GradeJob(str(n), ())) for n in range(4)]))
    assert isinstance(ends["2"], PackproofError)
    assert [ends[name] for name in "013"] == [GradeOutcome(0, name) for name in "013"]


@pytest.mark.parametrize("losses", [0, MOST_LOSSES, MOST_LOSSES + 1])
def test_a_lost_process_is_replaced(losses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[GradeJob] = []

    async def run_alone(job: GradeJob) -> GradeOutcome:
        calls.append(job)
        if len(calls) <= losses:
            raise LostGradeError("killed")
        return GradeOutcome(1)

    monkeypatch.setattr(engines, "run_alone", run_alone)
    engine = LocalEngine([], 1)
    [(_, end)] = outcomes(engine, [("a", GradeJob("a", ()))])
    engine.close()
    assert len(calls) == min(losses, MOST_LOSSES) + 1
    assert isinstance(end, LostGradeError) if losses > MOST_LOSSES else end == GradeOutcome(1)


def test_each_gpu_has_one_submission_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    busy: set[str] = set()

    async def run_alone(job: GradeJob) -> GradeOutcome:
        assert job.gpu not in busy
        busy.add(job.gpu)
        await asyncio.sleep(0.01)
        busy.remove(job.gpu)
        return GradeOutcome(0, job.gpu)

    monkeypatch.setattr(engines, "run_alone", run_alone)
    engine = LocalEngine(["4", "6"], None)
    ends = [end for _, end in outcomes(engine, [(str(n), GradeJob("a", ())) for n in range(6)])]
    engine.close()
    assert {end.document for end in ends if isinstance(end, GradeOutcome)} == {"4", "6"}
    assert len(ends) == 6
