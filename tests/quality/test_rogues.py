"""Kernels that cheat: a naive harness passes each, packproof's detects it, and no process of it remains.

One of each kind is checked here, for time; `packproof museum rogues`, which `make proof` runs, checks all of them.
"""

import ast
import importlib
import os
import time
from pathlib import Path

import pytest

from packproof.museum.rogues import entries, patches
from packproof.proof.museum.rogues import fools_a_naive_harness, try_rogues
from tests.in_process import environment

ROGUES = entries()
# incorrect at times; writes past its output; replaces a comparison; writes a result; closes descriptors; two that
# leave a process; declares less than its contract; computes in numpy; stops another process; a model that hangs
HERE = [ROGUES[name] for name in ("R21", "R33", "R41", "R57", "R61", "R79", "R97", "R100", "R152", "R134", "R171")]


def test_what_they_replace_in_packproof_is_there() -> None:
    """One whose name is gone raises instead, and is detected for that."""
    tree, names = ast.parse(Path(str(patches.__file__)).read_text()), 0
    modules = {
        node.target.id: importlib.import_module(f"packproof.{node.value.args[0].value}")  # type: ignore[attr-defined]
        for node in ast.walk(tree)
        if isinstance(node, ast.NamedExpr) and ast.unparse(node.value).startswith("_harness_module('")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            names += 1
            assert hasattr(modules[node.value.id], node.attr), ast.unparse(node)
    assert names > 3


@pytest.mark.proof
def test_each_is_detected_or_reported_and_no_process_remains() -> None:
    with environment(PACKPROOF_ROGUES_OF=str(os.getpid())):  # other tests may be running beside this one
        results = list(try_rogues(HERE))
    assert [(t.rogue.title, t.fate, t.rogue.detected, t.text) for t in results if not t.is_as_expected] == []
    assert len(results) == len(HERE)
    assert not _left(f"PACKPROOF_ROGUES_OF={os.getpid()}")


def _left(mark: str) -> list[str]:
    """The processes that still run some time after the last worker was ended."""
    end = time.monotonic() + 20
    while left := [pid for pid in filter(str.isdigit, os.listdir("/proc")) if _is_left(pid, mark)]:
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return left


def _is_left(pid: str, mark: str) -> bool:
    try:
        command, environment = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
    except OSError:
        return False
    return b"sleep\0007777" in command and mark.encode() in environment


@pytest.mark.proof
def test_a_naive_harness_passes_all_of_them() -> None:
    assert [rogue.title for rogue in ROGUES.values() if not fools_a_naive_harness(rogue)] == []
