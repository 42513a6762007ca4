"""Seeded races on a GPU: pauses show those that plain repetition misses, and kernels without the bug are quiet."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels.races.trial import Outcome

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def _outcome(name: str, lock: Path) -> Outcome:
    """Of 64 calls each way, in a process of its own, which a bug may hang."""
    command = [sys.executable, "-m", "tests.kernels.races.trial", name, "64", str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "name",
    ["single-buffer-reused-early", "prefetch-into-the-stage-in-use", "copy-into-stage-still-read", "halves-of-a-warp"],
)
def test_a_race_that_plain_repetition_misses_shows_under_perturbation(name: str, tmp_path: Path) -> None:
    pytest.importorskip("cuda.core")
    outcome = _outcome(name, tmp_path / "lock")
    assert outcome.perturbed > 0
    assert outcome.perturbed > outcome.plain
    assert outcome.correct == 0
