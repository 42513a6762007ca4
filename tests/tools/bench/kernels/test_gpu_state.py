"""A bench writes no table of a GPU that another process uses, or that slows itself down. nvidia-smi is made up here."""

import os
from pathlib import Path

import pytest

from packproof.base.errors import PackproofError, UsageError
from packproof.bench.kernels import command, gpu_state
from packproof.bench.kernels.bench import BenchRequest
from packproof.bench.kernels.command import Outputs, run_command
from packproof.bench.kernels.file import read_bench
from packproof.bench.kernels.gpu_state import GpuState
from packproof.bench.kernels.results import LayoutFinished
from tests.tools.bench.bench_results import result, stream


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_state, "_IDLE_SECONDS", 0.0)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is first on the search path."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def install(host: Path, utilization: str = "0 %", reasons: str = "0x0000000000000004") -> None:
    """reasons: 4 is a limit of power, as under any large product."""
    answers = f'case "$*" in *utilization*) echo "{utilization}";; *reasons*) echo "{reasons}";; esac'
    (host / "nvidia-smi").write_text(f'#!/bin/sh\ncase "$1" in --id=GPU-1) {answers};; *) exit 6;; esac\n')
    (host / "nvidia-smi").chmod(0o755)


def test_a_gpu_at_rest_and_at_full_speed_is_timed(host: Path) -> None:
    install(host, "3 %")
    gpu = GpuState("GPU-1")
    gpu.require_unshared()
    gpu(LayoutFinished((result(),)))


def test_a_gpu_in_use_is_refused_before_the_first_call(host: Path) -> None:
    install(host, "87 %")
    with pytest.raises(
        UsageError, match=r"^--json: GPU GPU-1 is at work 87 % .*choose another with CUDA_VISIBLE_DEVICES"
    ):
        GpuState("GPU-1").require_unshared()


@pytest.mark.parametrize("answer", ["[N/A]", "Field is not a valid field to query.", ""])
def test_a_driver_without_the_figures_is_no_reason(host: Path, answer: str) -> None:
    install(host, answer, answer)
    gpu = GpuState("GPU-1")
    gpu.require_unshared()
    gpu(LayoutFinished((result(),)))


def test_the_command_asks_where_it_writes_a_table(
    host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(host, reasons="0x00000000000000a0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    monkeypatch.setattr(command, "run_bench", lambda request: stream(result()))
    request, file = BenchRequest(layouts=(), device="cuda"), host / "bench.json"
    assert run_command(request, Outputs(), print).timed_rows == 1
    with pytest.raises(
        PackproofError, match="slower at L2 because of heat, by the driver, a brake of the power supply"
    ):
        run_command(request, Outputs(json=str(file)), print)
    document = read_bench(str(file), "bench.json")
    assert (document.rows, document.finished) == ((), False)
    assert "rope" in capsys.readouterr().out
