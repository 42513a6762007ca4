"""Ranks simulated in one process: one thread each, with a process group between them.

In a process that runs a kernel of a check, each rank runs once more in a process of its own: see `rank_apart`.
"""

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch

from packproof.base.arguments import whole_number
from packproof.base.errors import ArgumentError, checked_call
from packproof.parallel.rank_apart import RankApart
from packproof.parallel.rank_process import RankProcesses, StartFork
from packproof.parallel.simulated_group import BeforeExchange, RankScheduler, SimulatedGroup, no_exchange

T = TypeVar("T")
OnRank = Callable[[], AbstractContextManager[BeforeExchange]]


@contextmanager
def _no_watch() -> Iterator[OnRank]:
    yield lambda: nullcontext(no_exchange)


class Ranks:
    """Ranks with one process group each, kept from one run to the next: forward, then backward."""

    watch: ClassVar[Callable[[], AbstractContextManager[OnRank]] | None] = None
    """A context of each run, for an observer of the ranks' threads; None for no observer.

    It yields a factory of contexts, one for each rank. A rank's context yields a function to call before each exchange.
    """

    def __init__(self, size: int) -> None:
        self._scheduler = RankScheduler(size)
        self._groups = [SimulatedGroup(self._scheduler, rank) for rank in range(size)]

    def run(self, program: Callable[[SimulatedGroup], T]) -> list[T]:
        """Run the program on every rank, as `run_ranks` does."""
        with (Ranks.watch or _no_watch)() as on_rank:
            if RankProcesses.start_fork is None or len(self._groups) == 1:
                return self._run(program, on_rank)
            return self._run_apart(program, on_rank, RankProcesses.start_fork)

    def _run_apart(self, program: Callable[[SimulatedGroup], T], on_rank: OnRank, start_fork: StartFork) -> list[T]:
        """The results, with the values of ranks that ran in processes of their own."""
        with ExitStack() as processes:
            ranks = [RankApart(group, program, start_fork) for group in self._groups]
            for rank in ranks:
                processes.callback(rank.end)
            results = self._run(program, on_rank)
            for rank, result in zip(ranks, results, strict=True):
                rank.replace_values(result)
            return results

    def _run(self, program: Callable[[SimulatedGroup], T], on_rank: OnRank) -> list[T]:
        size, results = self._scheduler.size, dict[int, T]()
        threads_of_torch, grad, stream = torch.get_num_threads(), torch.is_grad_enabled(), _stream()
        self._scheduler.begin()

        def work(rank: int) -> None:
            torch.set_num_threads(threads_of_torch)  # each thread has its own
            group = self._groups[rank]
            single_threaded = torch.autograd.set_multithreading_enabled(False)
            with stream(), torch.set_grad_enabled(grad), single_threaded, on_rank() as group.before_exchange:
                results[rank] = program(group)

        def thread(rank: int) -> threading.Thread:
            arguments = (self._scheduler.run_rank, rank, partial(work, rank))
            return threading.Thread(target=contextvars.copy_context().run, args=arguments, daemon=True)

        threads = [thread(rank) for rank in range(size)]
        for rank_thread in threads:
            rank_thread.start()
        for rank_thread in threads:
            rank_thread.join()
        if self._scheduler.failed:
            rank, error = self._scheduler.failed
            error.add_note(f"on rank {rank} of {size}, simulated in this process")
            raise error
        return [results[rank] for rank in range(size)]


@checked_call
def run_ranks(size: int, program: Callable[[SimulatedGroup], T]) -> list[T]:
    """Run a program on `size` ranks simulated in this process; return its result on each rank.

    size: number of ranks.
    program: called with the process group of each rank.

    Raises the exception of the first rank to fail, with a note of its number, and PackproofError for a deadlock.

    >>> import torch
    >>> from packproof.parallel import run_ranks
    >>> def program(group):
    ...     x = torch.tensor([group.rank() + 1.0])
    ...     torch.distributed.all_reduce(x, group=group)
    ...     return float(x)
    >>> run_ranks(3, program)
    [6.0, 6.0, 6.0]
    """
    return Ranks(whole_number("run_ranks", "size", size, 1, ArgumentError)).run(program)


def _stream() -> Callable[[], Any]:
    """A context with the caller's CUDA stream; does nothing without CUDA."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return nullcontext
    stream = torch.cuda.current_stream()
    return lambda: torch.cuda.stream(stream)
