"""Ranks that talk past their group: simulated in one process they can, and so each runs in a process of its own too."""

import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, ProcessGroup, reduce_scatter

import packproof
from packproof import CheckFailed, refs
from packproof.base.errors import PackproofError
from packproof.harness.process.execution.fork import start_fork
from packproof.parallel import ContiguousShares, run_ranks, simulated
from packproof.parallel.rank_process import RankProcesses
from packproof.parallel.simulated_group import SimulatedGroup
from packproof.properties.declarations.promises import Promises
from packproof.properties.laws.partition import PARTITION
from tests.parallel.own import own
from tests.parallel.test_partition import OWN, Subject

TOKENS_BY_RANK: dict[int, Tensor] = {}  # what no rank of a real job could read of another


@pytest.fixture
def in_own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that runs the kernel of a check."""
    monkeypatch.setattr(RankProcesses, "start_fork", staticmethod(start_fork))


def _of_earlier_ranks(rank: int, like: Tensor, *, strict: bool) -> list[Tensor]:
    return [TOKENS_BY_RANK[k] if strict else TOKENS_BY_RANK.get(k, like[:0]) for k in range(rank)]


def talks_by_a_variable(strict: bool) -> Any:
    """A convolution that reads the tokens of earlier ranks from a variable of this module.

    strict: whether it raises KeyError where they are absent, or goes on without them.
    """

    def run(group: ProcessGroup, *, x: Tensor, weight: Tensor, cu_seqlens: Tensor, cuts: Any) -> Tensor:
        if group.rank() == 0:
            TOKENS_BY_RANK.clear()
        TOKENS_BY_RANK[group.rank()] = x.detach()
        whole = torch.cat([*_of_earlier_ranks(group.rank(), x, strict=strict), x])
        y = refs.causal_conv1d(whole, weight, cu_seqlens=cu_seqlens.clamp(max=len(whole)))
        return y[len(whole) - len(x) :]

    def conv(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        raise AssertionError("what the kernel is called with")

    return simulated(ContiguousShares("causal_conv1d", run), conv)


careless = talks_by_a_variable(strict=False)


def violations(kernel: Any) -> list[Any]:
    """Of the first golden case with one, by values alone."""
    subject = Subject("causal_conv1d", kernel, Promises())
    for case in subject.golden:
        TOKENS_BY_RANK.clear()
        if lines := list(PARTITION.check(subject.kernel.values_only, case)):
            return lines
    return []


@pytest.mark.parametrize("strict", [True, False])
def test_a_variable_of_a_module_connects_ranks_that_share_a_process(strict: bool) -> None:
    assert violations(talks_by_a_variable(strict)) == []


@pytest.mark.usefixtures("in_own_processes")
def test_it_connects_no_ranks_in_processes_of_their_own() -> None:
    assert violations(talks_by_a_variable(strict=False))
    TOKENS_BY_RANK.clear()
    x, weight, cu_seqlens = torch.randn(5, 3), torch.randn(3, 4), torch.tensor([0, 5])
    with pytest.raises(PackproofError, match=r"rank 1 of 2, alone .* KeyError: 0\. Ranks share no memory"):
        talks_by_a_variable(strict=True)(x, weight, cu_seqlens=cu_seqlens, cuts=(3,))


def test_a_check_runs_ranks_in_processes_of_their_own() -> None:
    with pytest.raises(CheckFailed, match="over ranks is incorrect"):
        packproof.check(
            f"{__name__}:careless",
            op="causal_conv1d",
            device="cpu",
            dtypes=["fp32"],
            properties=["partition"],
            profile="quick",
            forward_only=True,
        )


@pytest.mark.usefixtures("in_own_processes")
@pytest.mark.parametrize("op", [op if op == "attention" else pytest.param(op, marks=pytest.mark.proof) for op in OWN])
def test_implementations_that_exchange_by_their_group_pass(op: str) -> None:
    assert Subject(op, own(op), Promises()).failing() == []


def exchange_everything(group: ProcessGroup) -> tuple[Tensor, ...]:
    rank, size = group.rank(), group.size()
    x = torch.arange(3.0) + 10 * rank
    received, total = torch.empty(3), torch.empty(3)
    if rank:
        group.recv([received], rank - 1, 0)
    if rank + 1 < size:
        group.send([x], rank + 1, 0)
    reduce_scatter(total, [x + k for k in range(size)], group=group)
    options = BroadcastOptions()
    options.rootRank = 1
    group.broadcast([x], options)
    return received.nan_to_num() if rank else total, total, x


def test_every_kind_of_exchange_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: list[tuple[Tensor, ...]] = run_ranks(3, exchange_everything)
    monkeypatch.setattr(RankProcesses, "start_fork", staticmethod(start_fork))
    for a, b in zip(shared, run_ranks(3, exchange_everything), strict=True):
        assert all(map(torch.equal, a, b))


def _exits(group: ProcessGroup) -> Tensor:
    if TOKENS_BY_RANK.setdefault(-1, torch.zeros(())) == 0 and group.rank() == 0:
        TOKENS_BY_RANK[-1] = torch.ones(())
    elif TOKENS_BY_RANK[-1] == 0:
        raise SystemExit(0)
    return torch.ones(2)


@pytest.fixture
def empty_variable() -> Iterator[None]:
    TOKENS_BY_RANK.clear()
    yield
    TOKENS_BY_RANK.clear()


@pytest.mark.usefixtures("in_own_processes", "empty_variable")
def test_a_rank_that_ends_its_own_process_is_no_result() -> None:
    with pytest.raises(PackproofError, match=r"rank 1 of 2, alone .* its process was ended or stopped"):
        run_ranks(2, _exits)


def _stops(group: ProcessGroup) -> Tensor:
    assert isinstance(group, SimulatedGroup)
    if group.recorded is not None and group.rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)  # the signal may come to another thread first
    return torch.ones(2)


@pytest.mark.usefixtures("in_own_processes")
def test_a_rank_that_is_stopped_is_not_waited_for() -> None:
    with pytest.raises(PackproofError, match=r"rank 1 of 2, alone .* its process was ended or stopped"):
        run_ranks(2, _stops)


def _speaks(group: ProcessGroup) -> Tensor:
    assert isinstance(group, SimulatedGroup)
    if group.recorded is not None:
        for number in range(3, 64):
            with suppress(OSError):
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    os.write(number, b"what is no message of packproof's own")
    return torch.ones(2)


@pytest.mark.usefixtures("in_own_processes")
def test_what_is_no_message_is_no_answer() -> None:
    with pytest.raises(PackproofError, match=r"rank 0 of 2, alone .* its process was ended or stopped"):
        run_ranks(2, _speaks)
