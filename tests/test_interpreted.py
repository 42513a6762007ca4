"""Tests that need a process with Triton's interpreter: files interpreted_*.py, a pytest of its own for each group."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def order_of(file: Path) -> tuple[bool, bool, Path]:
    """The interpreter's own tests first: the samples of numerics have to be imported before it is repaired."""
    return file.stem != "interpreted_numerics", file.parent.name != "interpreter", file


FILES = sorted(HERE.rglob("interpreted_*.py"), key=order_of)
LONG = [file for file in FILES if re.search(r"mark\.proof|@sweep|borrowed_tests", file.read_text())]


def group_of(file: Path) -> str:
    """Files of a group share a process, and with it its imports."""
    return "emulated" if "_cuda" in file.stem else "triton"  # the emulator of CUDA C++ is there for the process


GROUPS = ("triton", "emulated")


def test_each_group_has_files() -> None:
    assert {group_of(file) for file in FILES} == set(GROUPS)
    assert {"interpreted_rope.py", "interpreted_sanitizer.py", "interpreted_training.py"} <= {f.name for f in FILES}


@pytest.mark.parametrize("group", GROUPS)
def test_in_the_interpreter(group: str) -> None:
    run([file for file in FILES if group_of(file) == group])


@pytest.mark.proof
@pytest.mark.parametrize("file", LONG, ids=lambda file: file.stem.removeprefix("interpreted_"))
def test_what_takes_long_in_the_interpreter(file: Path) -> None:
    run([file], "-m", "proof")


def run(files: list[Path], *options: str) -> None:
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *map(str, files)]
    done = subprocess.run(
        command, cwd=HERE.parent, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if " passed" not in done.stdout:
        pytest.skip(done.stdout)
