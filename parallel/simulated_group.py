"""The process group between ranks simulated in one process, and whose turn it is.

One rank runs at a time, until it waits for others; then the next one runs. Hence runs are deterministic, kernels need
not be thread-safe, and a deadlock is detected at once.
"""

# mypy: disable-error-code="override, assignment, call-arg, attr-defined, no-untyped-call, no-any-return"

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future

from packproof.base.errors import PackproofError

T = TypeVar("T")
BeforeExchange = Callable[[], None]
Exchange = tuple[str, list[Tensor]]  # the operation, and what it brought to the rank
_REDUCE: dict[Any, Callable[[Tensor], Tensor]] = {
    dist.ReduceOp.SUM: lambda x: x.sum(0),
    dist.ReduceOp.AVG: lambda x: x.mean(0),
    dist.ReduceOp.MAX: lambda x: x.amax(0),
    dist.ReduceOp.MIN: lambda x: x.amin(0),
}


def no_exchange() -> None:
    """Called before each exchange where no one watches."""


class _Stopped(BaseException):
    """Another rank has failed: stop this one."""


class RankScheduler:
    """The schedule of the ranks: the running rank, the operations of waiting ranks, and the tensors in transit."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self.begin()

    def begin(self) -> None:
        """Reset: no rank has run yet, rank 0 is next."""
        self.failed: tuple[int, BaseException] | None = None
        self._running = 0
        self._waiting: dict[int, tuple[str, Any]] = {}
        self._finished: set[int] = set()
        self._sent: dict[tuple[int, int, int], deque[Tensor]] = defaultdict(deque)

    def meet(self, rank: int, operation: str, data: Any, work: Callable[[list[Any]], None]) -> None:
        """Wait for all ranks. The last one to arrive calls `work` with the data of all ranks."""
        with self._changed:
            self._waiting[rank] = operation, data
            if len(self._waiting) == self.size and len({name for name, _ in self._waiting.values()}) == 1:
                contributions = [self._waiting[r][1] for r in range(self.size)]
                self._waiting.clear()
                with torch.no_grad():
                    work(contributions)
            else:
                self._wait(rank)

    def send(self, rank: int, destination: int, tag: int, x: Tensor) -> None:
        with self._changed:
            self._sent[rank, destination, tag].append(x.detach().clone())
            if self._waiting.get(destination, ("",))[0] == _receive_operation(rank, tag):
                del self._waiting[destination]

    def receive(self, rank: int, source: int, tag: int) -> Tensor:
        with self._changed:
            if not self._sent[source, rank, tag]:
                self._waiting[rank] = _receive_operation(source, tag), None
                self._wait(rank)
            return self._sent[source, rank, tag].popleft()

    def run_rank(self, rank: int, work: Callable[[], None]) -> None:
        """Run `work` on a rank, starting with its first turn."""
        try:
            with self._changed:
                self._sleep(rank)
            work()
        except _Stopped:
            pass
        except BaseException as error:  # raised again in the thread that started the ranks
            self.failed = self.failed or (rank, error)
        with self._changed:
            self._finished.add(rank)
            self._pass_on(rank)

    def _wait(self, rank: int) -> None:
        self._pass_on(rank)
        self._sleep(rank)

    def _sleep(self, rank: int) -> None:
        self._changed.wait_for(lambda: self.failed or (self._running == rank and rank not in self._waiting))
        if self.failed:
            raise _Stopped

    def _pass_on(self, rank: int) -> None:
        """Let the next runnable rank run. If there is none, record a PackproofError for this rank: a deadlock."""
        candidates = [(rank + k) % self.size for k in range(1, self.size + 1)]
        ready = [r for r in candidates if r not in self._waiting and r not in self._finished]
        if ready:
            self._running = ready[0]
        elif self._waiting and not self.failed:
            self.failed = rank, PackproofError(f"the ranks wait for each other without end: {self._standstill()}")
        self._changed.notify_all()

    def _standstill(self) -> str:
        activity = {r: f"is in {operation}" for r, (operation, _) in self._waiting.items()} | dict.fromkeys(
            self._finished, "has ended"
        )
        return ", ".join(f"rank {r} {activity[r]}" for r in range(self.size))


class SimulatedGroup(dist.ProcessGroup):
    """The process group of one rank: the methods called by `torch.distributed`, all blocking."""

    def __init__(self, scheduler: RankScheduler, rank: int) -> None:
        super().__init__(rank, scheduler.size)
        self._scheduler, self._rank = scheduler, rank
        self.before_exchange: BeforeExchange = no_exchange
        self.exchanges: list[Exchange] | None = None
        """What each exchange brought to this rank; None while it is not recorded."""
        self.recorded: Iterator[Exchange] | None = None
        """In a process of its own: what the exchanges bring, in their order. No other rank is there."""

    def getBackendName(self) -> str:  # noqa: N802  (torch's)
        return "simulated"

    def _meet(
        self, operation: str, data: Any, work: Callable[[list[Any]], None], outputs: Sequence[Tensor]
    ) -> dist.Work:
        self.before_exchange()
        if self.recorded is not None:
            _repeat(self.recorded, operation, outputs)
        else:
            self._scheduler.meet(self._rank, operation, data, work)
            self._record(operation, outputs)
        return _completed_work()

    def _record(self, operation: str, outputs: Sequence[Tensor]) -> None:
        if self.exchanges is not None:
            self.exchanges.append((operation, [x.detach().clone() for x in outputs]))

    def allgather(self, outputs: Any, inputs: Any, *_: Any) -> dist.Work:
        def work(ranks: list[Any]) -> None:
            for outs, _ in ranks:
                for out, (_, x) in zip(outs, ranks, strict=True):
                    _copy("all_gather", out, x)

        return self._meet("all_gather", (outputs[0], inputs[0]), work, outputs[0])

    def _allgather_base(self, output: Tensor, x: Tensor, *_: Any) -> dist.Work:
        def work(ranks: list[Any]) -> None:
            gathered = torch.stack([part for _, part in ranks])
            for out, _ in ranks:
                _copy("all_gather_into_tensor", out.view(-1), gathered.view(-1))

        return self._meet("all_gather_into_tensor", (output, x), work, [output])

    all_gather_single = _allgather_base  # its name in later versions of torch

    def allreduce(self, tensors: Any, options: Any = None) -> dist.Work:
        def work(ranks: list[Any]) -> None:
            total = _reduce("all_reduce", ranks, options)
            for x in ranks:
                x.copy_(total)

        return self._meet("all_reduce", tensors[0], work, tensors[:1])

    def reduce_scatter(self, outputs: Any, inputs: Any, options: Any = None) -> dist.Work:
        def work(ranks: list[Any]) -> None:
            for r, (out, _) in enumerate(ranks):
                _copy("reduce_scatter", out, _reduce("reduce_scatter", [xs[r] for _, xs in ranks], options))

        return self._meet("reduce_scatter", (outputs[0], inputs[0]), work, outputs[:1])

    def _reduce_scatter_base(self, output: Tensor, x: Tensor, options: Any = None) -> dist.Work:
        return self.reduce_scatter([output], [list(x.view(self.size(), *output.shape))], options)

    reduce_scatter_single = _reduce_scatter_base

    def alltoall(self, outputs: Any, inputs: Any, *_: Any) -> dist.Work:
        def work(ranks: list[Any]) -> None:
            for r, (outs, _) in enumerate(ranks):
                for out, (_, xs) in zip(outs, ranks, strict=True):
                    _copy("all_to_all", out, xs[r])

        return self._meet("all_to_all", (outputs, inputs), work, outputs)

    def alltoall_base(self, output: Tensor, x: Tensor, received: Any, sent: Any, *_: Any) -> dist.Work:
        def split(tensor: Tensor, sizes: Sequence[int]) -> list[Tensor]:
            return list(tensor.split(list(sizes)) if sizes else tensor.chunk(self.size()))

        return self.alltoall(split(output, received), split(x, sent))

    all_to_all_single = alltoall_base  # its name in later versions of torch

    def broadcast(self, tensors: Any, options: Any) -> dist.Work:
        def work(ranks: list[Any]) -> None:
            for x in ranks:
                _copy("broadcast", x, ranks[options.rootRank])

        return self._meet("broadcast", tensors[0], work, tensors[:1])

    def barrier(self, *_: Any, **__: Any) -> dist.Work:
        return self._meet("barrier", None, lambda _: None, [])

    def send(self, tensors: Any, destination: int, tag: int = 0) -> dist.Work:
        self.before_exchange()
        if self.recorded is None:
            self._scheduler.send(self._rank, destination, tag, tensors[0])
        return _completed_work()

    def recv(self, tensors: Any, source: int, tag: int = 0) -> dist.Work:
        self.before_exchange()
        if self.recorded is not None:
            _repeat(self.recorded, "recv", tensors[:1])
        else:
            _copy("recv", tensors[0], self._scheduler.receive(self._rank, source, tag))
            self._record("recv", tensors[:1])
        return _completed_work()


def _repeat(recorded: Iterator[Exchange], operation: str, outputs: Sequence[Tensor]) -> None:
    """Bring what this exchange brought when it was recorded."""
    recorded_operation, values = next(recorded, ("its end", []))
    if recorded_operation != operation:
        raise PackproofError(f"it comes to {operation}, where it came to {recorded_operation}")
    with torch.no_grad():
        for out, value in zip(outputs, values, strict=True):
            _copy(operation, out, value)


def _receive_operation(source: int, tag: int) -> str:
    return f"recv from rank {source}" + (f" with tag {tag}" if tag else "")


def _reduce(operation: str, tensors: Sequence[Tensor], options: Any) -> Tensor:
    op = dist.ReduceOp.SUM if options is None else options.reduceOp
    reduce = next((f for reduce_op, f in _REDUCE.items() if op == reduce_op), None)
    if reduce is None or len({(x.shape, x.dtype) for x in tensors}) > 1:
        actual = ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in tensors)
        raise PackproofError(
            f"{operation}: {op} of {actual} came, expected SUM, AVG, MAX or MIN of tensors that are alike"
        )
    return reduce(torch.stack(list(tensors)))


def _copy(operation: str, out: Tensor, x: Tensor) -> None:
    if out.shape != x.shape or out.dtype != x.dtype:
        raise PackproofError(f"{operation}: {x.dtype} {tuple(x.shape)} came for {out.dtype} {tuple(out.shape)}")
    out.copy_(x)


def _completed_work() -> dist.Work:
    future: Future[None] = Future()
    future.set_result(None)
    return _create_work_from_future(future)
