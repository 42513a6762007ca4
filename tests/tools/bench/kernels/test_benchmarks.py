"""The separate suite in tests/benchmarks: it runs, and gives no time to an incorrect implementation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from packproof.bench.kernels.results import SizeProof
from tests.benchmarks.test_ops import require_correct
from tests.in_process import pytest_in

ROOT = Path(__file__).parents[4]


def suite(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "tests/benchmarks", *arguments]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")} | {
        "CUDA_VISIBLE_DEVICES": ""
    }
    return subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)


@pytest.mark.proof
def test_a_reference_is_proven_and_timed() -> None:
    pytest.importorskip("pytest_benchmark", reason="the suite needs pytest-benchmark")
    done = suite("--benchmark-only", "-k", "rope-reference", "--benchmark-columns=median")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "benchmark 'rope, backward': 1 tests" in done.stdout
    assert "4 passed" in done.stdout


def test_without_the_plugin_it_names_what_to_install() -> None:
    done = pytest_in(ROOT, "-q", "tests/benchmarks", "-p", "no:benchmark")
    assert done.returncode != 0
    assert done.stderr.strip() == "ERROR: tests/benchmarks needs pytest-benchmark: pip install -e '.[bench]'"


def test_a_wrong_implementation_fails_with_its_verdict_and_an_absent_one_is_skipped() -> None:
    proof = SizeProof("rope", "mine", "h=1", "float32", "failed", "packing (y): lengths [1, 1]", examples=2)
    with pytest.raises(AssertionError, match=r"packing \(y\): lengths \[1, 1\]"):
        require_correct(proof)
    with pytest.raises(pytest.skip.Exception, match="not installed"):
        require_correct(SizeProof("rope", "fla_rope", "h=1", "bfloat16", "not installed", "not installed"))
