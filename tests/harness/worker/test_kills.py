"""A killed process of packproof costs time, but no verdict."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from packproof.harness.validation.museum.kills import KINDS, kills
from packproof.harness.worker import worker as module
from packproof.harness.worker.privilege import children
from packproof.harness.worker.worker import Worker
from packproof.harness.worker.zygote_client import ZygoteClient, shared
from packproof.properties.call import Call


def test_one_of_each_kind_may_be_killed_at_any_time(tmp_path: Path) -> None:
    found = list(kills(len(KINDS), 0, tmp_path))
    assert [kill for kill in found if kill.wrong] == []
    assert [kill.kind for kill in found if kill.hit] == list(KINDS)


def test_a_zygote_may_be_killed_before_a_worker_has_answered(
    make_call: Callable[..., Call], rogue: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def killed(interpreted: bool) -> ZygoteClient:
        before = set(children())
        client = shared(interpreted)
        (new,) = set(children()) - before
        started.append(new)
        if len(started) < 3:
            os.kill(new, signal.SIGKILL)
        return client

    monkeypatch.setattr("packproof.harness.worker.zygote_client._shared", {})
    monkeypatch.setattr(module, "shared", killed)
    with Worker(rogue("good")) as worker:
        worker.run(make_call(2))
    assert len(started) == 3
