"""Tests that need a process with Triton's interpreter: each file interpreted_*.py, by a pytest of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(HERE.rglob("interpreted_*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem.removeprefix("interpreted_"))
def test_in_the_interpreter(file: Path) -> None:
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(
        command, cwd=HERE.parent, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if " passed" not in done.stdout:
        pytest.skip(done.stdout)


def test_there_are_some() -> None:
    assert {"interpreted_rope.py", "interpreted_sanitizer.py", "interpreted_training.py"} <= {f.name for f in FILES}
