"""Kernels that cheat: a naive harness passes each, packproof's detects it, and nothing of it is left behind."""

import os
from pathlib import Path

from packproof.harness.validation.museum.rogues import fools_a_naive_harness, try_rogues
from packproof.museum.rogues import entries

ROGUES = entries()


def test_each_is_seen_for_what_it_is_and_nothing_is_left_running() -> None:
    trials = list(try_rogues(list(ROGUES.values())))
    assert [(t.rogue.title, t.fate, t.rogue.detected, t.said) for t in trials if not t.as_expected] == []
    assert len(trials) >= 60
    assert sum(trial.fate in ("detected", "reported") for trial in trials) >= 55
    commands = [Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
    assert not [file for file in commands if file.exists() and b"sleep\0007777" in file.read_bytes()]


def test_a_naive_harness_passes_all_of_them() -> None:
    assert [rogue.title for rogue in ROGUES.values() if not fools_a_naive_harness(rogue)] == []
