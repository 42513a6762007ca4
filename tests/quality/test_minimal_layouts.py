"""A promise to users: what is printed for a broken kernel is the textbook minimum."""

from collections.abc import Iterator

import pytest

from packproof.harness.check import run_check
from packproof.harness.events import CellFinished, Failure
from packproof.harness.plan import CheckRequest
from packproof.properties.promises import Promises
from tests.planted import attention, convolution, rotary, scan, ssd

MODULES = {"causal_conv1d": convolution, "selective_scan": scan, "ssd": ssd, "rope": rotary, "attention": attention}


def failures(op: str, bug: str, name: str) -> Iterator[Failure]:
    module = MODULES[op]
    request = CheckRequest(
        target=getattr(module, bug),
        op=op,
        dtypes=("float32",),
        properties=(name,),
        profile="quick",
        promises=Promises(**module.PROMISES.get(bug, module.PROMISES["correct"])),
    )
    for event in run_check(request):
        if isinstance(event, CellFinished) and event.verdict.failure is not None:
            yield event.verdict.failure


LEAKS_AT_A_BOUNDARY = [
    ("causal_conv1d", "C1"),
    ("causal_conv1d", "C2"),
    ("causal_conv1d", "C3"),
    ("causal_conv1d", "C6"),
    ("causal_conv1d", "C10"),
    ("selective_scan", "S1"),
    ("selective_scan", "S2"),
    ("selective_scan", "S11"),
    ("ssd", "D2"),
    ("rope", "R1"),
    ("rope", "R3"),
]


@pytest.mark.parametrize(("op", "bug"), LEAKS_AT_A_BOUNDARY)
@pytest.mark.parametrize("name", ["reference", "packing"])
def test_a_leak_at_a_boundary_is_shown_on_two_sequences_of_at_most_three_tokens(
    op: str, bug: str, name: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    (failure,) = failures(op, bug, name)
    assert len(failure.lengths) <= 2
    assert sum(failure.lengths) <= 3, failure.lengths


CHUNK_EDGES = [
    ("causal_conv1d", "C4", (17,)),  # halo of the second tile
    ("selective_scan", "S3", (16, 1)),  # a start on the grid
    ("selective_scan", "S12", (33,)),  # a chunk without a start
    ("selective_scan", "S14", (17,)),  # a last chunk of one row
    ("selective_scan", "S23", (15, 1)),  # one token in a last row
    ("ssd", "D3", (17,)),  # the state of a chunk before
    ("ssd", "D4", (16, 1)),  # a carried state and a new sequence in one chunk
    ("ssd", "D9", (16, 1)),
    ("ssd", "D11", (17,)),
    ("attention", "A1", (1, 16, 1)),  # a key block that begins in another sequence
]


@pytest.mark.parametrize(("op", "bug", "smallest"), CHUNK_EDGES)
def test_a_leak_at_a_chunk_edge_is_shown_on_the_smallest_lengths_that_reach_it(
    op: str, bug: str, smallest: tuple[int, ...], tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    (failure,) = failures(op, bug, "reference")
    assert sum(failure.lengths) <= sum(smallest), failure.lengths
    assert len(failure.lengths) <= len(smallest), failure.lengths
