"""What a check leaves in the folder where it ran: nothing, unless a kernel fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import configuration

from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.space import Space
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS

KERNEL = "def scaled(x, weight, *, cu_seqlens): return x * weight"


@pytest.mark.proof
def test_a_check_that_passes_leaves_nothing(tmp_path: Path) -> None:
    """Random examples too: Hypothesis, which draws them, would keep a cache in the folder."""
    source, place = tmp_path / "kernels.py", tmp_path / "place"
    source.write_text(KERNEL)
    place.mkdir()
    op = f"{Path(__file__).parents[2] / 'harness/rogues_op.py'}:SCALED"
    env = {name: value for name, value in os.environ.items() if name != "HYPOTHESIS_STORAGE_DIRECTORY"}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[3] / "src"), os.environ.get("PYTHONPATH", "")])
    few = ["--op", op, "--dtype", "fp32", "--property", "determinism", "--device", "cpu"]
    command = [sys.executable, "-m", "packproof", "check", f"{source}:scaled", *few]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False)
    assert "every property held: 1 passed" in done.stdout, done.stdout + done.stderr
    assert list(place.rglob("*")) == []


def test_a_place_that_the_user_chose_for_hypothesis_stays(tmp_path: Path) -> None:
    configuration.set_hypothesis_home_dir(tmp_path)
    try:
        assert random_cases(Space(OPS["rope"], "float32", Promises()), 2, seed=0)
        assert configuration.storage_directory().path == tmp_path
    finally:
        configuration.set_hypothesis_home_dir(None)
