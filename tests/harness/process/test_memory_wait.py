"""A process that the system ends for want of memory says nothing of the kernel in it."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from packproof.base.errors import KernelFault, OutOfMemory, UsageError
from packproof.cli.main import run
from packproof.harness.process import memory_wait
from packproof.harness.process.memory_wait import MemoryWatch, ProcessKilled, count_kills
from packproof.harness.process.worker import Worker
from packproof.properties.calling.call import Call

# the file is seen by all processes of one kernel
KERNEL = """
import os, signal, tempfile
def be_killed(n):
    with open(os.path.join(tempfile.gettempdir(), "kills"), "a+") as file:
        file.write("x")
        if file.tell() <= n:
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
be_killed(AT_IMPORT)
def conv(x, weight, bias=None, *, cu_seqlens):
    be_killed(IN_CALLS)
    return x * weight
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Callable[..., str]:
    def write(*, at_import: int = 0, in_calls: int = 0) -> str:
        text = KERNEL.replace("AT_IMPORT", str(at_import)).replace("IN_CALLS", str(in_calls))
        (tmp_path / "kernel.py").write_text(text)
        return f"{tmp_path / 'kernel.py'}:conv"

    return write


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_wait, "_PAUSES", (0.01,) * 5)


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system ends processes for want of memory all the time."""
    kills = count()
    monkeypatch.setattr(memory_wait, "count_kills", lambda: next(kills))


@pytest.mark.usefixtures("shortage")
@pytest.mark.parametrize("kills", [{"at_import": 5}, {"in_calls": 5}])
def test_a_process_ended_for_want_of_memory_is_started_again(
    make_call: Callable[..., Call], kernel: Callable[..., str], kills: dict[str, int]
) -> None:
    with Worker(kernel(**kills)) as worker:
        assert "y" in worker.run(make_call(2)).outputs


@pytest.mark.usefixtures("shortage")
@pytest.mark.parametrize("kills", [{"at_import": 99}, {"in_calls": 99}])
def test_where_there_is_no_memory_in_time_no_one_is_at_fault(
    make_call: Callable[..., Call], kernel: Callable[..., str], kills: dict[str, int]
) -> None:
    text = r"^this machine lacks memory: the system has ended the kernel's process 6 times"
    with Worker(kernel(**kills)) as worker, pytest.raises(OutOfMemory, match=text):
        worker.run(make_call(2))


@pytest.mark.usefixtures("shortage")
def test_a_kernel_that_took_the_memory_itself_is_at_fault(
    make_call: Callable[..., Call], kernel: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_wait, "_OWN_BYTES", 1 << 20)  # each process has more
    with Worker(kernel(in_calls=99)) as worker, pytest.raises(ProcessKilled):
        worker.run(make_call(2))


def test_a_kernel_that_is_killed_while_there_is_memory_is_at_fault(
    make_call: Callable[..., Call], kernel: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_wait, "count_kills", lambda: 7)
    with Worker(kernel(in_calls=99)) as worker, pytest.raises(KernelFault, match="killed by SIGKILL"):
        worker.run(make_call(2))
    with (
        Worker(kernel(at_import=99)) as worker,
        pytest.raises(UsageError, match="cannot be imported: its process killed by SIGKILL"),
    ):
        worker.open()


@pytest.mark.usefixtures("shortage")
@pytest.mark.parametrize(("kills", "is_opened"), [({"at_import": 99}, False), ({"in_calls": 99}, True)])
def test_a_check_without_memory_has_no_verdict_and_says_why(
    kernel: Callable[..., str], capsys: pytest.CaptureFixture[str], kills: dict[str, int], *, is_opened: bool
) -> None:
    """A grader gives it to another machine: exit code 1 is a kernel's fault, 2 its caller's, 3 packproof's."""
    options = ["--op", "causal_conv1d", "--property", "reference", "--dtype", "fp32", "--profile", "quick"]
    assert run(["check", kernel(**kills), *options, "--device", "cpu"]) == 4
    printed = capsys.readouterr()
    assert "this machine lacks memory" in (printed.out if is_opened else printed.err)
    assert "packproof itself failed" not in printed.out + printed.err


def test_the_system_counts_what_it_ends() -> None:
    watch = MemoryWatch()
    assert count_kills() >= 0
    assert not watch.explains_kill(1 << 40)
