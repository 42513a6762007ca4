"""Twenty cheats of different kinds have no reward. They run in a throwaway root, or the test fails."""

import json
import subprocess
import sys

import pytest

from packproof.proof.museum.throwaway_root import environment, throwaway_root
from tests.tools.grading import graded_rogues

# answers that are not computed, memory, a process that is replaced or ends, refusals, a reference that computes
ANSWERS = ("R1", "R3", "R6", "R10", "R11", "R13", "R14", "R17", "R20", "R22", "R24", "R27")
ROGUES = (*ANSWERS, "R33", "R36", "R41", "R69", "R85", "R88", "R90", "R229")


@pytest.mark.proof
def test_cheats_have_no_reward() -> None:
    with throwaway_root() as prefix:
        done = subprocess.run(
            [*prefix, sys.executable, "-P", "-m", graded_rogues.__name__, *ROGUES],
            env={**environment(), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            timeout=3600,
            check=True,
        )
    grades = json.loads(done.stdout.splitlines()[-1])
    assert grades.keys() == set(ROGUES)
    assert {name: grade for name, grade in grades.items() if grade[0] != "failed" or grade[1]} == {}
