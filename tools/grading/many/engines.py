"""What makes grades side by side, and the loop that keeps a bounded number of them in flight."""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from packproof.base.errors import PackproofError
from packproof.base.machine import available_cores
from packproof.grading.many.alone import LostGradeError, run_alone
from packproof.grading.many.job import GradeJob, GradeOutcome

CORES = {"cpu": 1, "cuda": 4}  # of a grade; beside a GPU, for compilers and the process that judges
MOST_LOSSES = 20  # a grade that loses its process more often is not made: it may be what ends them


class Engine(Protocol):
    """Makes grades. A ticket stands for one that was started."""

    device: str
    """Of the grades."""
    cores: int
    """Of each one."""

    @property
    def capacity(self) -> int:
        """How many grades may be in flight now."""

    def start(self, job: GradeJob) -> Any:
        """The ticket of a grade."""

    def wait(self, tickets: Collection[Any]) -> Any:
        """The ticket of one that is done."""

    def outcome(self, ticket: Any) -> GradeOutcome:
        """How it ended. Raises PackproofError if it was not made."""

    def close(self) -> None:
        """End what is in flight."""


def outcomes(
    engine: Engine, jobs: Iterable[tuple[str, GradeJob]]
) -> Iterator[tuple[str, GradeOutcome | PackproofError]]:
    """How each grade ended, by its name, in the order in which they are done; an error for one that was not made.

    jobs: are asked for when they can be started, so that few of them are in memory.
    """
    remaining, names = iter(jobs), dict[Any, str]()
    while True:
        while len(names) < engine.capacity and (pair := next(remaining, None)):
            names[engine.start(pair[1])] = pair[0]
        if not names:
            return
        ticket = engine.wait(names)
        yield names.pop(ticket), _end(engine, ticket)


def _end(engine: Engine, ticket: Any) -> GradeOutcome | PackproofError:
    try:
        return engine.outcome(ticket)
    except PackproofError as error:
        return error


class LocalEngine:
    """Processes of this machine: a submission at a time for each GPU, or for so many cores.

    gpus: values of CUDA_VISIBLE_DEVICES; none for grades on a CPU.
    cores: of each grade; None for the usual number.
    """

    def __init__(self, gpus: Collection[str], cores: int | None) -> None:
        self._gpus = list(gpus)
        self.device = "cuda" if gpus else "cpu"
        self.cores = cores or CORES[self.device]
        self.capacity = len(gpus) or max(available_cores() // self.cores, 1)
        self._runner = asyncio.Runner()

    def start(self, job: GradeJob) -> "asyncio.Task[GradeOutcome]":
        """See `Engine`."""
        return self._runner.get_loop().create_task(self._outcome(job))

    async def _outcome(self, job: GradeJob) -> GradeOutcome:
        gpu = self._gpus.pop() if self._gpus else ""
        try:
            for _ in range(MOST_LOSSES):
                try:
                    return await run_alone(replace(job, gpu=gpu))
                except LostGradeError:
                    continue
            return await run_alone(replace(job, gpu=gpu))
        finally:
            if gpu:
                self._gpus.append(gpu)

    def wait(self, tickets: "Collection[asyncio.Task[GradeOutcome]]") -> "asyncio.Task[GradeOutcome]":
        """See `Engine`."""
        done, _ = self._runner.run(_wait_for_first(tickets))
        return next(iter(done))

    def outcome(self, ticket: "asyncio.Task[GradeOutcome]") -> GradeOutcome:
        """See `Engine`."""
        return ticket.result()

    def close(self) -> None:
        """See `Engine`."""
        self._runner.close()


async def _wait_for_first(
    tickets: "Collection[asyncio.Task[GradeOutcome]]",
) -> "tuple[set[asyncio.Task[GradeOutcome]], set[asyncio.Task[GradeOutcome]]]":
    return await asyncio.wait(tickets, return_when=asyncio.FIRST_COMPLETED)
