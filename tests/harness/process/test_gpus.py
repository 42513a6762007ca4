"""One GPU for each worker of a test run: the host's GPUs are faked, the workers are pytest-xdist's own."""

import importlib.metadata
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from packproof.harness.check.request import CheckRequest
from packproof.harness.process import gpus
from packproof.harness.pytest import xdist_order
from packproof.harness.pytest.plugin import Proof
from packproof.harness.report.events import Cell, Event, RunFinished, Verdict
from packproof.properties.laws.catalogue import PROPERTIES
from tests.in_process import environment

ROOT = Path(__file__).parents[3]
INSTALLED = any(entry.name == "packproof" for entry in importlib.metadata.entry_points(group="pytest11"))
PLUGIN = ("-p", "packproof" if INSTALLED else "packproof.harness.pytest.plugin")  # loaded before xdist
SUITE = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(8))
def test_where(number):
    seen = f"{os.environ['PYTEST_XDIST_WORKER']} {os.environ.get('CUDA_VISIBLE_DEVICES')}"
    pathlib.Path(f"seen-{number}").write_text(seen)
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Path]:
    """A folder on the search path where a test puts an nvidia-smi; no GPU is hidden or chosen."""
    gpus._installed_gpu_count.cache_clear()
    with environment(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}", CUDA_VISIBLE_DEVICES=None):
        yield tmp_path
    gpus._installed_gpu_count.cache_clear()


def install(host: Path, script: str) -> None:
    (host / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (host / "nvidia-smi").chmod(0o755)


TWO = """[ "$1" = -L ] && printf 'GPU 0: NVIDIA H200 (UUID: GPU-1)\\nGPU 1: NVIDIA H200 (UUID: GPU-2)\\n'"""


def test_gpus_are_counted_without_starting_cuda(host: Path) -> None:
    install(host, TWO)
    assert gpus.visible_gpus() == ["0", "1"]
    assert [gpus.gpu_environment(worker)["CUDA_VISIBLE_DEVICES"] for worker in range(3)] == ["0", "1", "0"]


@pytest.mark.parametrize(
    ("listed", "names"),
    [("3, 5", ["3", "5"]), ("GPU-9f,GPU-1c", ["GPU-9f", "GPU-1c"]), ("2,-1,3", ["2"]), ("", []), ("-1", [])],
)
def test_an_existing_list_is_respected(host: Path, listed: str, names: list[str]) -> None:
    install(host, TWO)
    with environment(CUDA_VISIBLE_DEVICES=listed):
        assert gpus.visible_gpus() == names


def test_a_host_whose_driver_does_not_answer_has_no_gpu(host: Path) -> None:
    install(host, "echo 'GPU 0: none of it'; exit 9")
    assert gpus.visible_gpus() == []
    assert gpus.gpu_environment(1) == {}
    assert gpus.worker_count() is None


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(("cores", "expected"), [(1, 2), (5, 4), (8, 8), (200, 16)])
def test_every_gpu_has_as_many_workers(cores: int, expected: int) -> None:
    with environment(CUDA_VISIBLE_DEVICES="0,1"):
        assert gpus.worker_count(cores) == expected


def seen(folder: Path, *arguments: str, suite: str = SUITE, **environment: str) -> set[tuple[str, ...]]:
    """Worker and CUDA_VISIBLE_DEVICES of each test of a suite under pytest-xdist."""
    (folder / "test_where.py").write_text(suite)
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *PLUGIN, "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**alone, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {tuple(file.read_text().split()) for file in folder.glob("seen-*")}


def test_each_worker_of_a_run_on_cuda_is_pinned_to_a_gpu(host: Path) -> None:
    pytest.importorskip("xdist", reason="needs pytest-xdist")
    arguments = ("-n", "2", "--packproof-device=cuda")
    assert seen(host, *arguments, CUDA_VISIBLE_DEVICES="4,7") <= {("gw0", "4"), ("gw1", "7")}


@pytest.mark.proof
def test_n_auto_starts_workers_for_every_gpu(host: Path) -> None:
    """And not for every core, as xdist would, though packproof's plugin is loaded before it."""
    pytest.importorskip("xdist", reason="needs pytest-xdist")
    count = len(os.sched_getaffinity(0)) + 1
    install(host, '[ "$1" = -L ] && ' + "; ".join(f"echo 'GPU {n}: NVIDIA H200 (UUID: GPU-{n})'" for n in range(count)))
    found = seen(host, "-n", "auto", "--packproof-device=cuda", suite=SUITE.replace("range(8)", f"range({4 * count})"))
    assert found <= {(f"gw{number}", str(number % count)) for number in range(gpus.worker_count() or 0)}
    assert {gpu for _, gpu in found} == {str(number) for number in range(count)}


@pytest.mark.proof
def test_a_suite_without_cuda_keeps_all_gpus(host: Path) -> None:
    pytest.importorskip("xdist", reason="needs pytest-xdist")
    assert {gpu for _, gpu in seen(host, "-n", "2", CUDA_VISIBLE_DEVICES="4,7")} == {"4,7"}


def test_a_kernel_is_checked_on_the_gpu_of_its_worker(fake_check: Callable[..., None]) -> None:
    """Also where the run does not pass `--packproof-device cuda` and the worker itself may use them all."""
    assigned = []

    def engine(request: CheckRequest) -> Iterator[Event]:
        assigned.append(os.environ["CUDA_VISIBLE_DEVICES"])
        yield RunFinished((Verdict(Cell("op", "m:f", "packing", "float32", "cuda"), "gpu", "passed", 1, 0.1),), 0.1)

    fake_check(engine)
    for worker in ("gw0", "gw1", "gw2"):
        with environment(CUDA_VISIBLE_DEVICES="4,7", PYTEST_XDIST_WORKER=worker):
            Proof(CheckRequest("m:f", device="cuda"), lambda name, value: None)()
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,7"
    assert assigned == ["4", "7", "4"]


def test_workers_side_by_side_check_different_kernels_and_dtypes() -> None:
    kinds = ("float32", "bfloat16", "float16")

    def item(kernel: str, kind: str, law: str) -> Any:
        params = {"proof": SimpleNamespace(dtypes=(kind,), properties=(law,))}
        return SimpleNamespace(nodeid=f"test_it.py::{kernel}[{law}-{kind}]", callspec=SimpleNamespace(params=params))

    items = [
        item(kernel, kind, law) for kernel in ("ssd", "scan", "conv", "rope") for law in PROPERTIES for kind in kinds
    ]
    ordered = xdist_order.interleave_tests(items)
    assert sorted(i.nodeid for i in ordered) == sorted(i.nodeid for i in items)
    first = [i.nodeid for i in ordered[:24:2]]  # of each worker: it is given two to begin with
    assert len({(name.partition("[")[0], name.rpartition("-")[2]) for name in first}) == 12
    quick = {(name,) for name, law in PROPERTIES.items() if law.quick}
    before = [law for law in (i.callspec.params["proof"].properties for i in ordered) if law not in quick]
    size = [at for at, properties in enumerate(before) if properties == ("size",)]
    assert max(Counter(at * 3 // len(before) for at in size).values()) <= 5, "they are all over the run"
    last = {i.callspec.params["proof"].properties for i in ordered[-24:]}
    assert last <= quick, "a run waits for its last test"
