"""Forks may crash, hang or fail; each is reported separately."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from packproof.base.errors import PackproofError
from packproof.proof.mutants.fork_pool import run_forked


def work(item: str) -> Iterator[dict[str, Any]]:
    yield {"item": item, "seen": 1}
    if item == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "hang":
        signal.setitimer(signal.ITIMER_PROF, 0.05)
        while True:
            pass
    if item == "exit":
        raise SystemExit
    yield {"seen": 2, "tainted": item == "taints"}


def test_how_forks_end() -> None:
    done = dict(run_forked(["well", "crash", "hang", "again"], work, jobs=2))
    assert done == {
        "well": {"item": "well", "seen": 2},
        "again": {"item": "again", "seen": 2},
        "crash": {"item": "crash", "seen": 1, "by": "crashed"},
        "hang": {"item": "hang", "seen": 1, "by": "hung"},
    }


def processes(item: str) -> Iterator[dict[str, Any]]:
    yield {"pid": os.getpid(), "tainted": item == "taints"}
    if item == "crash":
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_fork_takes_several_items_until_one_taints_or_ends_it() -> None:
    done = dict(run_forked(["a", "b", "taints", "c", "crash", "d", "e"], processes, jobs=1))
    assert list(done) == ["a", "b", "taints", "c", "crash", "d", "e"]
    pids = {item: found["pid"] for item, found in done.items()}
    assert pids["a"] == pids["b"] == pids["taints"] != pids["c"]
    assert pids["c"] == pids["crash"] != pids["d"] == pids["e"]
    assert "tainted" not in done["taints"]


def test_an_error_of_the_work_is_not_the_mutants() -> None:
    with pytest.raises(PackproofError, match="SystemExit"):
        list(run_forked(["exit"], work, jobs=1))
