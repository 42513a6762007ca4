"""A grade by a process of its own: what comes back, and that nothing stays once no one waits for it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from packproof.grading.many import leashed
from packproof.grading.many.alone import LostGradeError, run_alone
from packproof.grading.many.job import GradeJob, GradeOptions, encoded
from packproof.grading.many.leashed import claim_cores
from packproof.harness.process.execution.fork import start_fork
from packproof.version import __version__

TERMS = ("--task", "causal_conv1d-forward-easy", *GradeOptions("cpu", "s", timed=False).arguments)
WAITS = "import time\n\ntime.sleep(1000)\n"
ASKS = """import asyncio
from packproof.grading.many.alone import run_alone
from packproof.grading.many.job import GradeJob, encoded

asyncio.run(run_alone(GradeJob("k.py:conv", {terms}, {{"k.py": encoded({source!r}.encode())}})))
"""


def job(source: str, version: str = __version__) -> GradeJob:
    return GradeJob("inner/k.py:conv", TERMS, {"inner/k.py": encoded(source.encode())}, version=version)


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def processes_in(folder: Path) -> list[int]:
    """The processes whose working directory is in a folder, the oldest first."""
    pids = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            target = os.readlink(link)
        except OSError:  # it has ended
            continue
        if target.startswith(f"{folder}/"):
            pids.append(int(link.parent.name))
    return sorted(pids)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of grades are made."""
    tmp_path.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_the_grade_comes_back_and_its_folder_is_removed(temporary: Path) -> None:
    outcome = asyncio.run(run_alone(job("import a_module_of_no_one")))
    assert outcome.code == 1
    assert (
        "inner/k.py cannot be imported: ModuleNotFoundError: No module named 'a_module_of_no_one'" in outcome.document
    )
    assert str(temporary) not in outcome.document
    assert outcome.seconds > 0
    assert list(temporary.iterdir()) == []


def test_another_version_grades_nothing() -> None:
    outcome = asyncio.run(run_alone(job("import a_module_of_no_one", version="0.0.1")))
    assert outcome.code == 2
    assert outcome.document == ""
    assert "and 0.0.1 where the grades are made for" in outcome.errors


def test_a_grade_ends_with_the_process_that_asked_for_it(temporary: Path) -> None:
    asker = subprocess.Popen([sys.executable, "-c", ASKS.format(terms=TERMS, source=WAITS)])
    wait_until(lambda: len(processes_in(temporary)) > 2, "the kernel's process has not begun")
    asker.kill()
    asker.wait()
    wait_until(lambda: not processes_in(temporary), "processes were left", 20)
    wait_until(lambda: not list(temporary.iterdir()), "a folder was left", 20)


def test_a_grade_that_was_killed_is_lost(temporary: Path) -> None:
    async def kill_meanwhile() -> None:
        grade = asyncio.create_task(run_alone(job(WAITS)))
        await asyncio.to_thread(wait_until, lambda: processes_in(temporary), "the grade has not begun")
        os.kill(processes_in(temporary)[0], signal.SIGKILL)
        await grade

    with pytest.raises(LostGradeError, match="was ended by signal 9"):
        asyncio.run(kill_meanwhile())
    wait_until(lambda: not list(temporary.iterdir()), "a folder was left", 20)


def test_a_grade_ends_with_the_process_on_the_leash(temporary: Path) -> None:
    async def kill_meanwhile() -> None:
        grade = asyncio.create_task(run_alone(job(WAITS)))
        await asyncio.to_thread(wait_until, lambda: processes_in(temporary), "the grade has not begun")
        status = Path(f"/proc/{processes_in(temporary)[0]}/status").read_text()
        os.kill(int(status.partition("PPid:")[2].split()[0]), signal.SIGKILL)
        await grade

    with pytest.raises(LostGradeError, match="the process that graded it was killed"):
        asyncio.run(kill_meanwhile())
    wait_until(lambda: not processes_in(temporary), "processes were left", 20)


def test_no_two_grades_have_the_same_core(monkeypatch: pytest.MonkeyPatch) -> None:
    cores: set[int] = {0, 1, 2}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    kept: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, claims: kept.append(set(claims)))
    monkeypatch.setattr(leashed, "_CLAIM", f"\0packproof-test-{os.getpid()}-")
    first = claim_cores(2)
    assert claim_cores(2) == []
    second = claim_cores(1)
    assert kept == [{0, 1}, {2}]
    for claim in (*first, *second):
        claim.close()
    assert len(claim_cores(3)) == 3


def test_claims_end_with_their_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leashed, "_CLAIM", f"\0packproof-test-{os.getpid()}-")
    assert start_fork(lambda: len(claim_cores(1)) - 1, error_code=3).wait() == 0
    with_claim = start_fork(lambda: len(claim_cores(1)) - 1, error_code=3)
    assert with_claim.wait() == 0
