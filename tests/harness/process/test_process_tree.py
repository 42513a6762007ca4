"""What a kernel has started is counted while its call runs."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import pytest

from packproof.base.errors import KernelFault
from packproof.harness.process import process_tree
from packproof.harness.process.process_tree import has_started_too_many, max_started
from packproof.harness.process.worker import Worker
from packproof.properties.calling.call import Call

SIX = """
import os, time
def kernel(x, weight, *, cu_seqlens):
    for _ in range(6):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    time.sleep(60)
"""


def kernel(tmp_path: Path, text: str) -> str:
    (tmp_path / "kernel.py").write_text(text)
    return f"{tmp_path / 'kernel.py'}:kernel"


def test_a_kernel_that_starts_many_processes_is_ended_before_its_time_is_up(
    make_call: Callable[..., Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tree, "max_started", lambda: 4)
    monkeypatch.setattr("packproof.harness.process.child.max_started", lambda: 4)
    start = time.monotonic()
    with (
        Worker(kernel(tmp_path, SIX), time_limit=60) as worker,
        pytest.raises(KernelFault, match=r"^started more than 4 processes"),
    ):
        worker.run(make_call(2))
    assert time.monotonic() - start < 40


def test_those_that_a_process_has_started_are_counted_without_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max_started() >= 32
    assert not has_started_too_many(0)
    with subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & read line; kill $(jobs -p)"], stdin=PIPE) as process:
        while len([*process_tree.process_tree(process.pid)]) < 3:
            time.sleep(0.01)
        for most, expected in ((1, True), (2, False)):
            monkeypatch.setattr(process_tree, "max_started", lambda most=most: most)
            assert has_started_too_many(process.pid) == expected
        process.communicate(b"\n")
