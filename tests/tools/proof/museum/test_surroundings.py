"""What rogues change around them is seen in a throwaway root, and makes a verdict of all that ran there."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from packproof.museum.rogues import entries
from packproof.museum.rogues.throwaway import MARK
from packproof.proof.museum import rogues
from packproof.proof.museum.rogues import fools_a_naive_harness, try_rogues
from packproof.proof.museum.surroundings import Surroundings
from packproof.proof.museum.throwaway_root import ThrowawayRootError, environment, throwaway_root

STOPS = entries()["R134"]
_CHANGES = """
import os, pathlib, signal, socket
from packproof.museum.rogues import neighbour
from packproof.proof.museum.surroundings import Surroundings
with Surroundings() as around:
    print(around.changes())
    neighbour.Neighbour.REPORT.write_text("other")
    [pid] = neighbour.neighbours()
    os.setpriority(os.PRIO_PROCESS, pid, 7)
    socket.create_connection(("127.0.0.1", int(neighbour.Neighbour.PORT.read_text()))).close()
    print(around.changes())
    os.kill(pid, signal.SIGSTOP)
    print(*around.changes(), sep=", ")
"""


@pytest.mark.proof
def test_each_kind_of_change_is_seen() -> None:
    try:
        with throwaway_root() as prefix:
            command = [*prefix, sys.executable, "-P", "-c", _CHANGES]
            end = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=300)
    except ThrowawayRootError as error:
        pytest.skip(str(error))
    nothing, three, stopped = end.stdout.splitlines()
    assert nothing == "[]"
    changed = ["connections to local services", f"file {MARK}/run/report.json", "priority of the neighbour's process"]
    assert three == str(changed)
    assert "memory of the neighbour's process, or its life" in stopped


def test_it_refuses_to_stand_in_a_real_root() -> None:
    with pytest.raises(RuntimeError, match="throwaway root"), Surroundings():
        pass
    assert not MARK.exists()


def test_a_change_is_the_fate_of_all_that_ran() -> None:
    answers: dict[str, tuple[rogues.Fate, str]] = {STOPS.id: ("passed", "passed: ")}
    assert rogues._with_harm([STOPS], answers, []) == {STOPS.id: ("prevented", "passed: ")}
    [(fate, text)] = rogues._with_harm([STOPS], answers, ["file a", "file b"]).values()
    assert (fate, text) == ("harmed", "changed around it: file a; file b")
    assert rogues._with_harm([replace(STOPS, harms="")], answers, []) == answers


@pytest.mark.proof
@pytest.mark.skipif(os.geteuid() != 0, reason="only an overlay has files that a naive harness lets it change")
def test_a_rogue_that_stops_others_does_so_in_a_naive_harness_alone() -> None:
    assert fools_a_naive_harness(STOPS)
    [result] = try_rogues([STOPS])
    assert (result.fate, result.is_as_expected) == ("prevented", True)
    assert not MARK.exists()
