"""Ranks simulated in one process: a thread each, of which one runs at a time, and a process group between them.

A rank runs until it waits for others, then the next one does. So a run is the same each time, kernels need not be safe
in threads, and where ranks would wait for each other forever it is seen at once.
"""

# mypy: disable-error-code="override, assignment, call-arg, attr-defined, no-untyped-call, no-any-return"

import contextvars
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future

from packproof.refs.arguments import whole_number
from packproof.refs.errors import ArgumentError, PackproofError, checked_call

T = TypeVar("T")
Communicates = Callable[[], None]
OnRank = Callable[[], AbstractContextManager[Communicates]]
_REDUCE: dict[Any, Callable[[Tensor], Tensor]] = {
    dist.ReduceOp.SUM: lambda x: x.sum(0),
    dist.ReduceOp.AVG: lambda x: x.mean(0),
    dist.ReduceOp.MAX: lambda x: x.amax(0),
    dist.ReduceOp.MIN: lambda x: x.amin(0),
}


def _nothing() -> None:
    pass


@contextmanager
def _unwatched() -> Iterator[OnRank]:
    yield lambda: nullcontext(_nothing)


class _Stopped(BaseException):
    """Another rank has failed: this one goes no further."""


class Turns:
    """Which of the ranks runs, what the others wait for, and what they have sent."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self.begin()

    def begin(self) -> None:
        """No rank has run yet, and the first one is next."""
        self.failed: tuple[int, BaseException] | None = None
        self._running = 0
        self._waiting: dict[int, tuple[str, Any]] = {}
        self._ended: set[int] = set()
        self._sent: dict[tuple[int, int, int], deque[Tensor]] = defaultdict(deque)

    def meet(self, rank: int, what: str, data: Any, work: Callable[[list[Any]], None]) -> None:
        """Wait for all ranks to be here; the last one does the work, on what each of them brought."""
        with self._changed:
            self._waiting[rank] = what, data
            if len(self._waiting) == self.size and len({name for name, _ in self._waiting.values()}) == 1:
                brought = [self._waiting[r][1] for r in range(self.size)]
                self._waiting.clear()
                with torch.no_grad():
                    work(brought)
            else:
                self._wait(rank)

    def send(self, rank: int, to: int, tag: int, x: Tensor) -> None:
        with self._changed:
            self._sent[rank, to, tag].append(x.detach().clone())
            if self._waiting.get(to, ("",))[0] == _receiving(rank, tag):
                del self._waiting[to]

    def receive(self, rank: int, of: int, tag: int) -> Tensor:
        with self._changed:
            if not self._sent[of, rank, tag]:
                self._waiting[rank] = _receiving(of, tag), None
                self._wait(rank)
            return self._sent[of, rank, tag].popleft()

    def take(self, rank: int, work: Callable[[], None]) -> None:
        """All that a rank does, from its first turn on."""
        try:
            with self._changed:
                self._sleep(rank)
            work()
        except _Stopped:
            pass
        except BaseException as error:  # raised again where the ranks were started
            self.failed = self.failed or (rank, error)
        with self._changed:
            self._ended.add(rank)
            self._pass_on(rank)

    def _wait(self, rank: int) -> None:
        self._pass_on(rank)
        self._sleep(rank)

    def _sleep(self, rank: int) -> None:
        self._changed.wait_for(lambda: self.failed or (self._running == rank and rank not in self._waiting))
        if self.failed:
            raise _Stopped

    def _pass_on(self, rank: int) -> None:
        """The next rank that waits for nothing takes its turn; PackproofError for the rank that leaves none."""
        others = [(rank + k) % self.size for k in range(1, self.size + 1)]
        ready = [r for r in others if r not in self._waiting and r not in self._ended]
        if ready:
            self._running = ready[0]
        elif self._waiting and not self.failed:
            self.failed = rank, PackproofError(f"the ranks wait for each other without end: {self._standstill()}")
        self._changed.notify_all()

    def _standstill(self) -> str:
        where = {r: f"is in {what}" for r, (what, _) in self._waiting.items()} | dict.fromkeys(self._ended, "has ended")
        return ", ".join(f"rank {r} {where[r]}" for r in range(self.size))


class SimulatedGroup(dist.ProcessGroup):
    """The process group of one of the ranks: what `torch.distributed` calls, blocking."""

    def __init__(self, turns: Turns, rank: int) -> None:
        super().__init__(rank, turns.size)
        self._turns, self._rank = turns, rank
        self.communicates: Communicates = _nothing

    def getBackendName(self) -> str:  # noqa: N802  (torch's)
        return "simulated"

    def _meet(self, what: str, data: Any, work: Callable[[list[Any]], None]) -> dist.Work:
        self.communicates()
        self._turns.meet(self._rank, what, data, work)
        return _done()

    def allgather(self, outputs: Any, inputs: Any, *_: Any) -> dist.Work:
        def work(ranks: list[Any]) -> None:
            for outs, _ in ranks:
                for out, (_, x) in zip(outs, ranks, strict=True):
                    _copy("all_gather", out, x)

        return self._meet("all_gather", (outputs[0], inputs[0]), work)

    def _allgather_base(self, output: Tensor, x: Tensor, *_: Any) -> dist.Work:
        def work(ranks: list[Any]) -> None:
            whole = torch.stack([mine for _, mine in ranks])
            for out, _ in ranks:
                _copy("all_gather_into_tensor", out.view(-1), whole.view(-1))

        return self._meet("all_gather_into_tensor", (output, x), work)

    all_gather_single = _allgather_base  # its name in later versions of torch

    def allreduce(self, tensors: Any, options: Any = None) -> dist.Work:
        def work(ranks: list[Any]) -> None:
            whole = _reduced("all_reduce", ranks, options)
            for x in ranks:
                x.copy_(whole)

        return self._meet("all_reduce", tensors[0], work)

    def reduce_scatter(self, outputs: Any, inputs: Any, options: Any = None) -> dist.Work:
        def work(ranks: list[Any]) -> None:
            for r, (out, _) in enumerate(ranks):
                _copy("reduce_scatter", out, _reduced("reduce_scatter", [xs[r] for _, xs in ranks], options))

        return self._meet("reduce_scatter", (outputs[0], inputs[0]), work)

    def _reduce_scatter_base(self, output: Tensor, x: Tensor, options: Any = None) -> dist.Work:
        return self.reduce_scatter([output], [list(x.view(self.size(), *output.shape))], options)

    reduce_scatter_single = _reduce_scatter_base

    def alltoall(self, outputs: Any, inputs: Any, *_: Any) -> dist.Work:
        def work(ranks: list[Any]) -> None:
            for r, (outs, _) in enumerate(ranks):
                for out, (_, xs) in zip(outs, ranks, strict=True):
                    _copy("all_to_all", out, xs[r])

        return self._meet("all_to_all", (outputs, inputs), work)

    def alltoall_base(self, output: Tensor, x: Tensor, received: Any, sent: Any, *_: Any) -> dist.Work:
        def split(whole: Tensor, sizes: Sequence[int]) -> list[Tensor]:
            return list(whole.split(list(sizes)) if sizes else whole.chunk(self.size()))

        return self.alltoall(split(output, received), split(x, sent))

    all_to_all_single = alltoall_base  # its name in later versions of torch

    def broadcast(self, tensors: Any, options: Any) -> dist.Work:
        def work(ranks: list[Any]) -> None:
            for x in ranks:
                _copy("broadcast", x, ranks[options.rootRank])

        return self._meet("broadcast", tensors[0], work)

    def barrier(self, *_: Any, **__: Any) -> dist.Work:
        return self._meet("barrier", None, lambda _: None)

    def send(self, tensors: Any, to: int, tag: int = 0) -> dist.Work:
        self.communicates()
        self._turns.send(self._rank, to, tag, tensors[0])
        return _done()

    def recv(self, tensors: Any, of: int, tag: int = 0) -> dist.Work:
        self.communicates()
        _copy("recv", tensors[0], self._turns.receive(self._rank, of, tag))
        return _done()


class Ranks:
    """Ranks with a process group each, which stays the same from one run to the next: forward, then backward.

    watch: for one who has to see what ranks do, each in a thread of its own: a context of each run. It gives a context
    of each rank, which gives what is called before each exchange.
    """

    watch: ClassVar[Callable[[], AbstractContextManager[OnRank]] | None] = None

    def __init__(self, size: int) -> None:
        self._turns = Turns(size)
        self._groups = [SimulatedGroup(self._turns, rank) for rank in range(size)]

    def run(self, program: Callable[[SimulatedGroup], T]) -> list[T]:
        """As `run_ranks`."""
        with (Ranks.watch or _unwatched)() as on_rank:
            return self._run(program, on_rank)

    def _run(self, program: Callable[[SimulatedGroup], T], on_rank: OnRank) -> list[T]:
        size, found = self._turns.size, dict[int, T]()
        threads_of_torch, grad, stream = torch.get_num_threads(), torch.is_grad_enabled(), _stream()
        self._turns.begin()

        def work(rank: int) -> None:
            torch.set_num_threads(threads_of_torch)  # each thread has its own
            group = self._groups[rank]
            here = torch.autograd.set_multithreading_enabled(False)
            with stream(), torch.set_grad_enabled(grad), here, on_rank() as group.communicates:
                found[rank] = program(group)

        def thread(rank: int) -> threading.Thread:
            arguments = (self._turns.take, rank, partial(work, rank))
            return threading.Thread(target=contextvars.copy_context().run, args=arguments, daemon=True)

        threads = [thread(rank) for rank in range(size)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        if self._turns.failed:
            rank, error = self._turns.failed
            error.add_note(f"on rank {rank} of {size}, simulated in this process")
            raise error
        return [found[rank] for rank in range(size)]


@checked_call
def run_ranks(size: int, program: Callable[[SimulatedGroup], T]) -> list[T]:
    """What the program returns on each of so many ranks, simulated in this process, given the rank's process group.

    Raises what the first rank to fail raised, with a note of its number, and PackproofError where ranks wait for each
    other without end.

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
    """A context with the caller's CUDA stream, where it has one."""
    if not torch.cuda.is_initialized():
        return nullcontext
    stream = torch.cuda.current_stream()
    return lambda: torch.cuda.stream(stream)


def _receiving(of: int, tag: int) -> str:
    return f"recv from rank {of}" + (f" with tag {tag}" if tag else "")


def _reduced(what: str, tensors: Sequence[Tensor], options: Any) -> Tensor:
    op = dist.ReduceOp.SUM if options is None else options.reduceOp
    reduce = next((f for known, f in _REDUCE.items() if op == known), None)
    if reduce is None or len({(x.shape, x.dtype) for x in tensors}) > 1:
        came = ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in tensors)
        raise PackproofError(f"{what}: {op} of {came} came, expected SUM, AVG, MAX or MIN of tensors that are alike")
    return reduce(torch.stack(list(tensors)))


def _copy(what: str, out: Tensor, x: Tensor) -> None:
    if out.shape != x.shape or out.dtype != x.dtype:
        raise PackproofError(f"{what}: {x.dtype} {tuple(x.shape)} came for {out.dtype} {tuple(out.shape)}")
    out.copy_(x)


def _done() -> dist.Work:
    future: Future[None] = Future()
    future.set_result(None)
    return _create_work_from_future(future)
