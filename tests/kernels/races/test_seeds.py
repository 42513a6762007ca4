"""The seeded races: each that a kernel knows is tried, and each has a name of its own; no GPU is needed for that."""

import re
from pathlib import Path

import pytest

from tests.kernels.races import cuda_bugs, triton_bugs
from tests.kernels.races.mutants import by_name, drawn
from tests.kernels.races.trial import SEEDED, find_bug

HERE = Path(__file__).parent


@pytest.mark.parametrize("file", ["blocks.cu", "grids.cu"])
def test_each_bug_of_a_source_is_tried_once(file: str) -> None:
    text = (HERE / file).read_text(encoding="utf-8")
    declared = re.findall(r"^    ([A-Z][A-Z0-9_]+),$", text, re.MULTILINE)
    tried = [bug.name.upper().replace("-", "_") for bug in cuda_bugs.BUGS if bug.source.startswith(file)]
    assert sorted(["NONE", *tried]) == sorted(declared)
    for name in tried:
        assert len(re.findall(rf"BUG [!=]= {name}\b", text)) > 0, name


def test_each_bug_of_a_triton_kernel_is_tried_once() -> None:
    text = (HERE / "triton_kernels.py").read_text(encoding="utf-8")
    declared = set(re.findall(r'BUG [!=]= "([\w-]+)"', text))
    names = [bug.name for bug in triton_bugs.BUGS]
    assert set(names) == {*declared, "stream-not-awaited"}
    assert len(names) == len(set(names))


def test_names_lead_to_bugs() -> None:
    assert len(SEEDED) == len(cuda_bugs.BUGS) + len(triton_bugs.BUGS) >= 20
    assert all(find_bug(name).name == name for name in SEEDED)


def test_mutants_lack_a_wait_and_are_the_same_each_time() -> None:
    mutants = drawn(5)
    assert [bug.name for bug in mutants] == [bug.name for bug in drawn(5)]
    assert by_name(mutants[0].name).source == mutants[0].source
