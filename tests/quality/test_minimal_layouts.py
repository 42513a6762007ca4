"""A promise to users: the layout printed for a broken kernel is the textbook minimum."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packproof.harness.check.check import run_check
from packproof.harness.check.request import PROFILES, CheckRequest
from packproof.harness.report.events import CellFinished, Failure
from packproof.museum import entries
from packproof.properties.declarations.promises import Promises


@pytest.fixture(autouse=True)
def _patient(working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries decide how small a layout becomes, and not how busy the machine is."""
    quick = PROFILES["quick"]
    monkeypatch.setitem(PROFILES, "quick", replace(quick, shrink=replace(quick.shrink, seconds=120)))


def failures(bug: str, *names: str) -> Iterator[Failure]:
    entry = entries()[bug]
    request = CheckRequest(
        target=entry.kernel,
        op=entry.op,
        dtypes=("float32",),
        properties=names,
        profile="quick",
        promises=Promises(**entry.promises),
        questions=False,
    )
    for event in run_check(request):
        if isinstance(event, CellFinished) and event.verdict.failure is not None:
            yield event.verdict.failure


def sampled(bugs: Iterable[str], *sample: str) -> list[Any]:
    """One bug of each op is judged here, for time; `make proof` takes the others."""
    return [pytest.param(bug, marks=[] if bug in sample else [pytest.mark.proof]) for bug in bugs]


LEAKS_AT_A_BOUNDARY = ("C1", "C2", "C3", "C6", "C10", "S1", "S2", "S11", "D2", "R1", "R3")


@pytest.mark.parametrize("bug", sampled(LEAKS_AT_A_BOUNDARY, "C1", "R1"))
def test_a_leak_at_a_boundary_is_shown_on_two_sequences_of_at_most_three_tokens(bug: str) -> None:
    found = list(failures(bug, "reference", "packing"))
    assert len(found) == 2
    for failure in found:
        assert len(failure.lengths) <= 2
        assert sum(failure.lengths) <= 3, failure.lengths


CHUNK_EDGES = {
    "C4": (17,),  # halo of the second tile
    "S3": (16, 1),  # a start on the grid
    "S12": (33,),  # a chunk without a start
    "S14": (17,),  # a last chunk of one row
    "S23": (15, 1),  # one token in a last row
    "D3": (17,),  # the state of the previous chunk
    "D4": (16, 1),  # a carried state and a new sequence in one chunk
    "D9": (16, 1),
    "D11": (17,),
    "A1": (1, 16, 1),  # a key block that begins in another sequence
}


@pytest.mark.parametrize("bug", sampled(CHUNK_EDGES, "D11"))
def test_a_leak_at_a_chunk_edge_is_shown_on_the_smallest_lengths_that_reach_it(bug: str) -> None:
    smallest = CHUNK_EDGES[bug]
    (failure,) = failures(bug, "reference")
    assert sum(failure.lengths) <= sum(smallest), failure.lengths
    assert len(failure.lengths) <= len(smallest), failure.lengths
