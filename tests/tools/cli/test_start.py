"""How `packproof check` starts: torch is imported once, while the command line is read, and the process that kernels
run in is a fork of the command.

Such a fork has to be what a process started afresh would be: these kernels report what they find in theirs.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from packproof.cli import main
from packproof.harness.process.start.command_line import read_in_fork
from packproof.harness.process.start.environment import ENVIRONMENT
from tests.sweeps import sweep

COMMAND = (sys.executable, "-m", "packproof", "check")
FEW = (
    *("--op", "rope", "--dtype", "fp32", "--property", "reference", "--profile", "quick", "--device", "cpu"),
    "--no-isolate",  # these kernels write a file
)
GIVEN = {"PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "3", "MARK": "here"}
KERNEL = """
import gc, json, os, sys, time
from pathlib import Path
time.sleep(float(os.environ.get("WAIT", 0)))  # the process that the next one is forked from has nothing to do
from packproof.refs import rope as kernel

LOADED = [name for name in ("torch._dynamo", "hypothesis", "packproof.harness.check.check") if name in sys.modules]

def kinds():
    for link in Path("/proc/self/fd").iterdir():
        try:
            yield os.readlink(link).partition(":")[0]
        except OSError:
            pass  # of the listing itself

def can_look_into(pid):
    try:
        return bool(os.readlink(f"/proc/{pid}/fd/1"))
    except OSError:
        return False

def found():
    return {
        "argv": sys.argv,
        "comm": Path("/proc/self/comm").read_text(),
        "descriptors": sorted(kinds()),
        "environment": dict(os.environ),
        "path": sys.path,
        "hash": hash("text"),
        "loaded": LOADED,
        "collects": gc.isenabled(),
        "session": os.getsid(0),
        "sees its parent": can_look_into(os.getppid()),
    }

def rope(x, cos, sin, *, cu_seqlens, interleaved=False):
    file = Path("found.json")
    if not file.exists():
        file.write_text(json.dumps(found()))
    return kernel(x, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved)
"""


INCORRECT_KERNEL = KERNEL.replace("return kernel(x,", "return 2 * kernel(x,")


def found_by(command: tuple[str, ...], folder: Path, source: str, **environment: str) -> dict[str, Any]:
    """What the kernel found in its process, in a check by this command, which inherits a descriptor; how that ended."""
    (folder / "kernel.py").write_text(source)
    reader, writer = os.pipe()
    done = subprocess.run(
        [*command, "kernel.py:rope", *FEW],
        cwd=folder,
        env=os.environ | environment,
        pass_fds=(writer,),
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(reader)
    os.close(writer)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {**json.loads((folder / "found.json").read_text()), "end": done}


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By the installed command. Files of the working directory have the names of modules that it imports."""
    folder = tmp_path_factory.mktemp("forked")
    for name in ("torch", "triton", "json", "safetensors", "numpy"):
        (folder / f"{name}.py").write_text("raise RuntimeError('this file was imported')")
    start = "import sys; from packproof.__main__ import main; sys.argv[0] = 'packproof'; main()"
    return found_by((sys.executable, "-P", "-c", start, "check"), folder, INCORRECT_KERNEL, **GIVEN, WAIT="0.8")


@pytest.fixture(scope="module")
def spawned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = f"import sys; from packproof.cli.main import run; sys.exit(run({list(COMMAND[3:])!r} + sys.argv[1:]))"
    folder = tmp_path_factory.mktemp("spawned")
    return found_by((sys.executable, "-P", "-c", run), folder, KERNEL, **GIVEN, WAIT="0")


@pytest.mark.proof
def test_kernels_run_in_a_fork_of_the_command_and_no_file_of_the_working_directory_is_imported(
    forked: dict[str, Any], spawned: dict[str, Any]
) -> None:
    assert forked["argv"][1] == "check"
    assert spawned["argv"][0] == "-c"
    assert forked["comm"] == spawned["comm"] == "pp-zygote\n"


def test_what_the_first_case_does_not_need_is_not_imported(forked: dict[str, Any], spawned: dict[str, Any]) -> None:
    assert forked["loaded"] == spawned["loaded"] == []


def test_a_fork_has_the_environment_of_a_process_started_afresh(
    forked: dict[str, Any], spawned: dict[str, Any]
) -> None:
    own = {"PYTHONPATH", "PWD", "OLDPWD", "WAIT"}  # they name the folder, or differ
    ours, theirs = ({n: v for n, v in found["environment"].items() if n not in own} for found in (forked, spawned))
    assert ours == theirs
    assert ours.items() >= {**ENVIRONMENT, "TRITON_INTERPRET": "1", "MARK": "here"}.items()
    assert forked["hash"] == spawned["hash"]
    assert forked["collects"]


def test_a_fork_inherits_no_descriptor_of_the_command(forked: dict[str, Any], spawned: dict[str, Any]) -> None:
    assert forked["descriptors"] == spawned["descriptors"] == ["/dev/null", "pipe", "pipe", "socket"]


def test_a_fork_is_concealed_and_in_a_session_of_its_own(forked: dict[str, Any]) -> None:
    assert not forked["sees its parent"]
    assert forked["session"] not in (os.getsid(0), 0)


def test_the_command_ends_with_the_code_of_the_check(forked: dict[str, Any], spawned: dict[str, Any]) -> None:
    assert (forked["end"].returncode, forked["end"].stderr) == (1, "")
    assert "FAILED  reference" in forked["end"].stdout
    assert (spawned["end"].returncode, spawned["end"].stderr) == (0, "")


def test_a_process_that_has_imported_torch_is_not_forked(tmp_path: Path) -> None:
    (tmp_path / "torch.py").touch()
    run = "import sys; from packproof.harness.process.start.environment import is_fresh; print(is_fresh(), end=' ')"
    line = [sys.executable, "-c", f"{run}; import torch; print(is_fresh())"]
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    fresh = os.environ | ENVIRONMENT | {"PYTHONPATH": path}
    done = subprocess.run(line, env=fresh, capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
    line[2] = run
    done = subprocess.run(line, env=os.environ | {"PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def replaced(folder: Path, module: str, source: str, *line: str) -> "subprocess.Popen[str]":
    """A check that has begun, and imports this instead of the module of that name."""
    (folder / f"{module}.py").write_text(source)
    path = os.pathsep.join([str(folder), *sys.path])
    line = (*COMMAND, "kernel.py:rope", *FEW, *line)
    pipe = subprocess.PIPE
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    try:
        return subprocess.Popen(
            line, cwd=folder, env=os.environ | {"PYTHONPATH": path}, stdout=pipe, stderr=pipe, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_wrong_call_does_not_wait_for_torch(tmp_path: Path) -> None:
    with replaced(tmp_path, "torch", "import time; time.sleep(90)", "--profile", "fast") as check:
        out, err = check.communicate(timeout=60)
    assert (check.returncode, out) == (2, "")
    assert err == "packproof: no profile is called 'fast'; there are: quick, standard, thorough\n"


@sweep("number", [signal.SIGINT], [signal.SIGTERM])
def test_a_signal_does_not_wait_for_torch(tmp_path: Path, number: int) -> None:
    slow = "import pathlib, time; pathlib.Path('begun').touch(); time.sleep(90)"
    with replaced(tmp_path, "torch", slow) as check:
        while not (tmp_path / "begun").exists():
            assert check.poll() is None
            time.sleep(0.05)
        check.send_signal(number)
        out, err = check.communicate(timeout=60)
    assert (check.returncode, out, err) == (130, "", "packproof: interrupted\n")


@sweep("number", [signal.SIGKILL], [0])
def test_a_command_line_is_read_here_if_the_fork_that_reads_it_is_lost(tmp_path: Path, number: int) -> None:
    lost = """
import os, signal, sys
if not os.path.exists("lost"):
    os.mkdir("lost")
    os.kill(os.getpid(), {number})
sys.path.remove(os.path.dirname(__file__))
del sys.modules["typer"]
import typer
"""
    with replaced(tmp_path, "typer", lost.format(number=int(number)), "--profile", "fast") as check:
        out, err = check.communicate(timeout=60)
    assert (tmp_path / "lost").exists()
    assert (check.returncode, out) == (2, "")
    assert err == "packproof: no profile is called 'fast'; there are: quick, standard, thorough\n"


def test_a_command_is_handed_over_as_it_was_given() -> None:
    line = "check m:f --op rope --domain k==4 --domain t>1 --seed 3 -x --timeout 0.5 --device cpu"
    command = read_in_fork(line.split(), main.run, meanwhile=lambda: None)
    assert command is not None
    name, given = command
    assert name == "check"
    assert {n: x for n, x in given.items() if x not in (None, False)} == {
        "target": "m:f",
        "op": "rope",
        "domain": ["k==4", "t>1"],
        "seed": 3,
        "fail_fast": True,
        "timeout": 0.5,
        "device": "cpu",
        "profile": "standard",
    }
