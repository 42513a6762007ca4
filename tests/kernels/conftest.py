"""What the kernel tests share: outcomes of cases that need a process with Triton's interpreter."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@cache
def outcomes(script: str) -> dict[str, str]:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, str(HERE / script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture
def interpreted() -> Callable[[str, str], str]:
    """The outcome of a case of a script in this folder: "ok" or "SomeError: its text". A script runs once."""
    return lambda script, case: outcomes(script)[case]
