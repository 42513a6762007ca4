"""Tests that need a process with Triton's interpreter: each file interpreted_*.py, by a pytest of its own."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(HERE.rglob("interpreted_*.py"))


LONG = [file for file in FILES if "mark.proof" in file.read_text()]
each_of = partial(pytest.mark.parametrize, "file", ids=lambda file: file.stem.removeprefix("interpreted_"))


@each_of(FILES)
def test_in_the_interpreter(file: Path) -> None:
    run(file)


@pytest.mark.proof
@each_of(LONG)
def test_what_takes_long_in_the_interpreter(file: Path) -> None:
    run(file, "-m", "proof")


def run(file: Path, *options: str) -> None:
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(file)]
    done = subprocess.run(
        command, cwd=HERE.parent, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if " passed" not in done.stdout:
        pytest.skip(done.stdout)


def test_there_are_some() -> None:
    assert {"interpreted_rope.py", "interpreted_sanitizer.py", "interpreted_training.py"} <= {f.name for f in FILES}
