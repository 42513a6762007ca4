"""What `packproof check` says where it cannot work: one line of its own, with the exit code of docs/check.md.

Exit code 1 means that a property has failed, and nothing else ends with it.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.sweeps import sweep

OP = Path(__file__).parents[2] / "harness/rogues_op.py"
KERNEL = "def scaled(x, weight, *, cu_seqlens):\n    return x * weight\n"
CHECK = ("-m", "packproof", "check", "kernel.py:scaled", "--op", f"{OP}:SCALED", "--dtype", "fp32")
FEW = ("--property", "reference", "--profile", "quick", "--device", "cpu")
IN_A_ROOM = ("unshare", "--mount", "--pid", "--fork", "--kill-child")


def checked(
    folder: Path, *options: str, prefix: Sequence[str] = (), **environment: str
) -> "subprocess.CompletedProcess[str]":
    """A small check of a correct kernel in that folder. options: of Python."""
    (folder / "kernel.py").write_text(KERNEL)
    line = [*prefix, sys.executable, *options, *CHECK, *FEW]
    where = os.environ | environment
    return subprocess.run(line, cwd=folder, env=where, capture_output=True, text=True, check=False, timeout=120)


def only_line(done: "subprocess.CompletedProcess[str]", code: int) -> str:
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("packproof: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("packproof: ").rstrip()


BROKEN = {
    "torch": ("OSError", "libtorch_cpu.so: cannot open shared object file"),
    "typer": ("ModuleNotFoundError", "No module named 'typer'"),
    "safetensors": ("ModuleNotFoundError", "No module named 'safetensors'"),
    "triton": ("ImportError", "libtriton.so: undefined symbol"),
}


@sweep("module", ["triton"], [*BROKEN])
def test_what_cannot_be_imported_is_no_failed_property(module: str, tmp_path: Path) -> None:
    kind, text = BROKEN[module]
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    (stubs / f"{module}.py").write_text(f"raise {kind}({text!r})\n")
    done = checked(tmp_path, PYTHONPATH=os.pathsep.join([str(stubs), *filter(None, sys.path)]))
    line = only_line(done, 3)
    assert f"{kind}: {text}" in line
    assert f"{module}.py:1)" in line
    start = "packproof itself failed: the process that starts workers" if module == "triton" else "it cannot start: "
    assert line.startswith(start)


@pytest.mark.proof
def test_a_check_works_where_children_are_forgotten_memory_is_limited_and_assertions_are_off(tmp_path: Path) -> None:
    """A service or a shell may start the command with SIGCHLD ignored; assertions are on where kernels run."""
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[1] != resource.RLIM_INFINITY
    limit = "" if is_limited else f"ulimit -v {4 << 20}; "  # a limit of this process holds for the check too
    limited = ("sh", "-c", f'{limit}trap "" CHLD; exec "$@"', "sh")
    done = checked(tmp_path, "-O", prefix=limited)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "every property held" in done.stdout


@pytest.mark.proof
def test_a_handler_of_the_calling_program_does_not_run_in_packproofs_processes(tmp_path: Path) -> None:
    """It waits for whatever has ended, packproof's processes among them, all of which are forks of the program here.

    The program runs without assertions, which Triton's interpreter cannot do without, and says so.
    """
    (tmp_path / "program.py").write_text(f"""
import os, signal, torch, packproof

PROGRAM = os.getpid()

def reap(*_):
    if os.getpid() != PROGRAM:
        print("elsewhere", flush=True)
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass  # packproof was faster

signal.signal(signal.SIGCHLD, reap)
properties = dict(op={f"{OP}:SCALED"!r}, dtypes=["fp32"], properties=["reference"], profile="quick", device="cpu")
print(*(v.status for v in packproof.check(lambda x, weight, *, cu_seqlens: x * weight, **properties)), flush=True)
os.environ["TRITON_INTERPRET"] = "1"
from packproof.interpreter.repair import install
install()
""")
    line, where = [sys.executable, "program.py"], os.environ | {"PYTHONOPTIMIZE": "1"}
    done = subprocess.run(line, cwd=tmp_path, env=where, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (1, "passed\n"), done.stdout + done.stderr
    assert "PackproofError: Python runs without assertions here (-O or PYTHONOPTIMIZE)" in done.stderr
    assert "elsewhere" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_without_proc_it_says_so(tmp_path: Path) -> None:
    if subprocess.run([*IN_A_ROOM, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces here")
    hidden = (*IN_A_ROOM, "sh", "-c", 'mount -t tmpfs tmpfs /proc && exec "$@"', "sh")
    line = only_line(checked(tmp_path, prefix=hidden), 2)
    assert line.startswith("/proc is not mounted, where packproof finds the processes that kernels leave: mount ")


@pytest.mark.parametrize("mebibytes", [100, 400, 600])
def test_with_too_little_address_space_it_says_so(mebibytes: int, tmp_path: Path) -> None:
    limited = ("sh", "-c", f'ulimit -v {mebibytes * 1024}; exec "$@"', "sh")
    line = only_line(checked(tmp_path, prefix=limited), 2)
    assert line == f"a process may have {mebibytes} MiB of memory here, and torch takes 768: raise `ulimit -v`"


def test_a_working_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    leave = ("sh", "-c", 'cd gone; rmdir ../gone; exec "$@"', "sh")
    line = only_line(checked(tmp_path, prefix=leave), 2)
    assert line.startswith("the working directory cannot be found: No such file or directory; change into one")
