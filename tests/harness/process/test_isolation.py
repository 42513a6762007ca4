"""`packproof check --isolate`: what a kernel reaches within the walls, and the error where one of them is missing."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from packproof.base.errors import KernelFault, MissingWallError
from packproof.harness.process import set_isolation, zygote_client
from packproof.harness.process.walls import enclosure as enclosure_module
from packproof.harness.process.walls.catalogue import WALLS
from packproof.harness.process.walls.namespaces import namespaces_work
from packproof.harness.process.worker import Worker
from packproof.harness.report.formats.json_file import digest
from packproof.properties.calling.call import Call

SOURCE = Path(__file__).parents[3] / "src"
NAMES = [wall.name for wall in WALLS]
KERNELS = """
import os, socket, tempfile
from packproof import refs

def honest(x, weight, bias=None, *, cu_seqlens, activation=None):
    assert open("data").read() == "read"
    for folder in (tempfile.gettempdir(), os.environ["HOME"], "/dev/shm"):
        open(f"{folder}/scratch", "w").close()
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
    try:
        os.kill(os.getppid(), 9)
    finally:
        os._exit(3)
"""
needs_namespaces = pytest.mark.skipif(not namespaces_work(), reason="this system allows no namespaces")


def check(folder: Path, kernel: str, *arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "data").write_text("read")
    options = ["--op", "causal_conv1d", "--dtype", "fp32", "--property", "packing", "--profile", "quick"]
    return subprocess.run(
        [*prefix, sys.executable, "-m", "packproof", "check", f"kernels.py:{kernel}", *options, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )


@needs_namespaces
@pytest.mark.parametrize("isolate", [pytest.param((), marks=pytest.mark.proof), ("--isolate",)])
def test_a_correct_kernel_passes_and_the_report_has_the_walls(tmp_path: Path, isolate: tuple[str, ...]) -> None:
    done = check(tmp_path, "honest", "--device", "cpu", "--json", "report.json", *isolate)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["walls"] == dict.fromkeys(NAMES, True)
    assert report["digest"] == digest(report)
    assert report["digest"] != digest({**report, "verdict": "failed"})
    assert not list(tmp_path.glob("**/scratch"))


@needs_namespaces
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_correct_kernel_passes_within_the_walls_on_a_gpu(tmp_path: Path) -> None:
    done = check(tmp_path, "honest", "--device", "cuda", "--isolate", "--json", "report.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["walls"] == dict.fromkeys(NAMES, True)


@pytest.mark.proof
def test_without_walls_the_report_says_so(tmp_path: Path) -> None:
    done = check(tmp_path, "curious", "--device", "cpu", "--no-isolate", "--json", "report.json")
    assert done.returncode == 1
    assert json.loads((tmp_path / "report.json").read_text())["walls"] == dict.fromkeys(NAMES, False)


@needs_namespaces
def test_a_kernel_sees_no_network_and_no_process_and_writes_nothing(tmp_path: Path) -> None:
    done = check(tmp_path, "curious", "--device", "cpu")
    assert done.returncode == 1, done.stdout + done.stderr
    denied = "(Read-only file system|Permission denied)"
    assert re.search(f"AssertionError: lo; [1-4] processes; {denied}; {denied} ", done.stdout), done.stdout


@pytest.mark.proof
@needs_namespaces
def test_the_parent_of_workers_cannot_be_ended(tmp_path: Path) -> None:
    done = check(tmp_path, "killer", "--device", "cpu")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "exited with code 3 instead of returning" in done.stdout


@pytest.mark.proof
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="it takes a right away from root")
def test_where_the_system_allows_no_namespaces_the_check_ends_and_names_the_walls(tmp_path: Path) -> None:
    prefix = ("setpriv", "--bounding-set=-sys_admin")
    done = check(tmp_path, "honest", "--device", "cpu", "--isolate", prefix=prefix)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("packproof: --isolate: this system does not put up: ")
    assert "network (a namespace of networks)" in done.stderr
    assert done.stderr.endswith("; check without, or in a virtual machine\n")
    without = check(tmp_path, "honest", "--device", "cpu", "--json", "report.json", prefix=prefix)
    walls = json.loads((tmp_path / "report.json").read_text())["walls"]
    assert not walls["network"]
    assert walls["privileges"]
    assert without.returncode == (1 if "shm" in without.stdout else 0)


@pytest.mark.usefixtures("no_zygote")
def test_a_kernel_is_not_imported_where_a_wall_is_missing(
    make_call: Callable[..., Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_client, "_isolation", "usual")
    set_isolation("required")
    monkeypatch.setattr(enclosure_module, "namespaces_work", lambda: False)

    def closure(*_: object, **__: object) -> None:
        raise AssertionError("it has run")

    with Worker(closure) as worker, pytest.raises(MissingWallError, match=r"processes \(a namespace of processes\)"):
        worker.run(make_call(2))


@needs_namespaces
def test_a_kernel_that_writes_elsewhere_hears_where_it_may(make_call: Callable[..., Call], tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def logs(x, weight, *, cu_seqlens):\n    open('log', 'w')\n    return x * weight\n")
    words = r"^OSError: \[Errno 30\] Read-only file system: 'log' \(kernel.py:2\)\n    a kernel writes to its temporary"
    with Worker(f"{kernel}:logs") as worker, pytest.raises(KernelFault, match=words):
        worker.run(make_call(2))
