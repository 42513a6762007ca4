"""The sampler and the stream in a data loader: every document once, in packs that fit, on every rank equally many."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from packproof.packs import PackCollator, PackSampler, PackStream
from packproof.refs import ArgumentError, LayoutError

CAPACITY = 16
lengths_of = st.lists(st.integers(0, CAPACITY), min_size=1, max_size=30)
fast = settings(deadline=None, max_examples=50)


@fast
@given(
    lengths=lengths_of,
    ranks=st.integers(1, 4),
    drop_last=st.booleans(),
    packer=st.sampled_from(["best_fit", "in_order"]),
)
def test_ranks_share_the_packs(lengths: list[int], ranks: int, drop_last: bool, packer: str) -> None:
    def of(rank: int, ranks: int) -> list[list[int]]:
        return list(PackSampler(lengths, CAPACITY, packer, rank=rank, ranks=ranks, drop_last=drop_last))

    alone, shared = of(0, 1), [of(rank, ranks) for rank in range(ranks)]
    assert sorted(j for pack in alone for j in pack) == list(range(len(lengths)))
    assert len({len(packs) for packs in shared}) == 1
    alternating = [shared[i % ranks][i // ranks] for i in range(ranks * len(shared[0]))]
    assert alternating == (alone[: len(alternating)] if drop_last else (alone * ranks)[: len(alternating)])
    assert len(alternating) >= len(alone) or drop_last


def test_epochs_have_orders_of_their_own() -> None:
    sampler = PackSampler(list(range(1, 17)), CAPACITY, "in_order", shuffle=True)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert sorted(j for pack in first for j in pack) == list(range(16))


def test_a_loader_yields_packs() -> None:
    documents = [torch.arange(n) + 100 * n for n in (5, 2, 3, 4, 1, 9)]
    sampler = PackSampler(map(len, documents), 10)
    batches = list(DataLoader(documents, batch_sampler=sampler, collate_fn=PackCollator(10)))  # type: ignore[arg-type]
    assert [batch["input_ids"].shape for batch in batches] == [(1, 10)] * 3
    assert [batch["cu_seqlens"].tolist() for batch in batches] == [[0, 5, 9, 10], [0, 2, 5], [0, 9]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_holds_a_document_until_it_is_out(workers: int) -> None:
    documents = [torch.full((n,), n) for n in (5, 2, 3, 4, 1, 9)]
    stream = PackStream(documents, 10)
    loader: Any = DataLoader(stream, batch_size=None, collate_fn=PackCollator(), num_workers=workers)
    seen = torch.cat([batch["input_ids"][0] for batch in loader])
    assert sorted(seen.tolist()) == sorted(torch.cat(documents).tolist())


def test_a_stream_of_what_has_a_length_of_its_own() -> None:
    stream = PackStream([{"text": "abc"}, {"text": "de"}], 5, length=lambda document: len(document["text"]))
    [[(first, piece), _]] = stream
    assert (first, len(piece)) == ({"text": "abc"}, 3)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: PackSampler([3], 8, "split"), LayoutError, "PackStream yields their pieces"),
        (lambda: PackSampler([3], 8, "worst_fit"), LayoutError, "packer is 'worst_fit'"),
        (lambda: PackSampler([9], 8), LayoutError, "sequence 0 has 9 tokens"),
        (lambda: PackSampler([3], 8, rank=2, ranks=2), ArgumentError, "rank is 2 of 2 ranks; 0 to 1 was expected"),
        (lambda: PackSampler([3], 8, "in_order", window=3), LayoutError, "in_order has no window"),
        (lambda: PackSampler([3], 0), LayoutError, "capacity is 0; 1 or more was expected"),
        (lambda: PackStream(5, 8), ArgumentError, "documents is an int"),  # type: ignore[arg-type]
        (lambda: PackStream([], 8, "fit"), LayoutError, "packer is 'fit'"),
        (lambda: list(PackStream([[1] * 9], 8)), LayoutError, "sequence 0 has 9 tokens"),
    ],
)
def test_wrong_calls(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


@pytest.mark.proof
def test_two_workers_cannot_share_a_document() -> None:
    with pytest.raises(ArgumentError, match="2 workers cannot share a split stream"):
        list(DataLoader(PackStream([[1] * 9], 8, "split"), batch_size=None, num_workers=2))


def test_no_documents_make_no_packs() -> None:
    assert not list(PackSampler([], 8))
    assert not list(PackStream([], 8))
