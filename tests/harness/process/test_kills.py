"""A killed process of packproof costs time, but no verdict."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from packproof.harness.process import process_supply
from packproof.harness.process.privilege import child_pids
from packproof.harness.process.worker import Worker
from packproof.harness.process.zygote_client import ZygoteClient, shared_zygote
from packproof.proof.museum.kills import Kind, kills
from packproof.properties.calling.call import Call


@pytest.mark.proof
def test_a_process_may_be_killed_at_any_time(tmp_path: Path) -> None:
    kinds: tuple[Kind, ...] = ("evaluator", "zygote")
    found = list(kills(len(kinds), 0, tmp_path, kinds))
    assert [kill for kill in found if kill.deviation] == []
    assert tuple(kill.kind for kill in found if kill.hit) == kinds


@pytest.mark.usefixtures("no_zygote")
def test_a_zygote_may_be_killed_before_a_worker_has_answered(
    make_call: Callable[..., Call], rogue: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def killed(interpreted: bool) -> ZygoteClient:
        before = set(child_pids())
        client = shared_zygote(interpreted)
        (new,) = set(child_pids()) - before
        started.append(new)
        if len(started) < 3:
            os.kill(new, signal.SIGKILL)
        return client

    monkeypatch.setattr(process_supply, "shared_zygote", killed)
    with Worker(rogue("good")) as worker:
        worker.run(make_call(2))
    assert len(started) == 3
