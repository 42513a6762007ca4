"""`packproof check --isolate`: what a kernel reaches under bubblewrap, and the error where that does not work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.harness.process.privilege import isolation_command
from tests.in_process import environment, packproof_in

SOURCE = Path(__file__).parents[3] / "src"
KERNELS = """
import os, socket
from packproof import refs

def honest(x, weight, bias=None, *, cu_seqlens, activation=None):
    open("/dev/shm/scratch", "w").close()
    return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)

def curious(*inputs, **options):
    processes = [name for name in os.listdir("/proc") if name.isdigit()]
    found = [", ".join(name for _, name in socket.if_nameindex()), f"{len(processes)} processes"]
    for name in ("here", "/tmp/packproof-was-here"):
        try:
            open(name, "w").close()
        except OSError as error:
            found.append(error.strerror)
    raise AssertionError("; ".join(found))

def killer(*inputs, **options):
    os.kill(os.getppid(), 9)
    os._exit(3)
"""


def check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "kernels.py").write_text(KERNELS)
    options = ["--op", "causal_conv1d", "--dtype", "fp32", "--property", "packing", "--profile", "quick", "--isolate"]
    return subprocess.run(
        [sys.executable, "-m", "packproof", "check", *arguments, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def works() -> None:
    try:
        isolation_command()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("works")
def test_a_correct_kernel_passes(tmp_path: Path) -> None:
    done = check(tmp_path, "kernels.py:honest", "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("works")
def test_a_kernel_sees_no_network_and_no_process_and_writes_nothing(tmp_path: Path) -> None:
    done = check(tmp_path, "kernels.py:curious", "--device", "cpu")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "AssertionError: lo; 4 processes; Read-only file system; Read-only file system" in done.stdout


@pytest.mark.proof
@pytest.mark.usefixtures("works")
def test_the_parent_of_workers_is_replaced_inside(tmp_path: Path) -> None:
    done = check(tmp_path, "kernels.py:killer", "--device", "cpu")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "ended the process that had started it" in done.stdout


NO_PROGRAM = "it needs bubblewrap, and there is no bwrap on PATH; install it, or check without"
NO_GPU = "no GPU can be reached from inside, and device is cuda; use --device cpu"


@pytest.mark.parametrize(("device", "path", "reason"), [("cpu", "", NO_PROGRAM), ("cuda", os.environ["PATH"], NO_GPU)])
def test_where_it_does_not_work_one_line_gives_the_reason(tmp_path: Path, device: str, path: str, reason: str) -> None:
    with environment(PATH=path):
        done = packproof_in(tmp_path, "check", "packproof.refs:rope", "--device", device, "--isolate")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"packproof: --isolate: {reason}\n")


def test_a_bubblewrap_that_the_system_forbids_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    with environment(PATH=f"{tmp_path}:{os.environ['PATH']}"):
        done = packproof_in(tmp_path, "check", "packproof.refs:rope", "--device", "cpu", "--isolate")
    reason = "bubblewrap does not work on this system: bwrap: No permissions to create new namespace"
    assert (done.returncode, done.stderr) == (2, f"packproof: --isolate: {reason}; check without\n")
