"""Tests that need a process with Triton's interpreter: files interpreted_*.py, by a pytest of its own for each few."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# the interpreter's own files first: some need a process in which it is not yet repaired
FILES = sorted(HERE.rglob("interpreted_*.py"), key=lambda file: (file.parent.name != "interpreter", file))
ALONE = [[file] for file in FILES if file.stem.endswith("_cuda")]  # the emulator of CUDA C++ is there for the process
OTHERS = [file for file in FILES if [file] not in ALONE]
FEW = [*ALONE, *(OTHERS[k::4] for k in range(4))]
LONG = [[file] for file in FILES if "mark.proof" in file.read_text()]


def name_of(files: list[Path]) -> str:
    return " ".join(file.stem.removeprefix("interpreted_") for file in files)


each_of = partial(pytest.mark.parametrize, "files", ids=name_of)


@each_of(FEW)
def test_in_the_interpreter(files: list[Path]) -> None:
    run(files)


@pytest.mark.proof
@each_of(LONG)
def test_what_takes_long_in_the_interpreter(files: list[Path]) -> None:
    run(files, "-m", "proof")


def run(files: list[Path], *options: str) -> None:
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *map(str, files)]
    done = subprocess.run(
        command, cwd=HERE.parent, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if " passed" not in done.stdout:
        pytest.skip(done.stdout)


def test_there_are_some() -> None:
    assert {"interpreted_rope.py", "interpreted_sanitizer.py", "interpreted_training.py"} <= {f.name for f in FILES}
