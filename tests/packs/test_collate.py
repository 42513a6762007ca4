"""The collator's arguments are those that every convention of a whole model is proven with."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packproof.packs import PackCollator, PackStream
from packproof.refs import ArgumentError, LayoutError, PackLayout, Piece

lengths_of = st.lists(st.integers(0, 6), min_size=1, max_size=6)


@settings(deadline=None, max_examples=50)
@given(lengths=lengths_of, slack=st.none() | st.integers(0, 4))
def test_boundaries_are_those_of_the_layout(lengths: list[int], slack: int | None) -> None:
    documents = [torch.arange(n) + 10 * (j + 1) for j, n in enumerate(lengths)]
    capacity = None if slack is None else max(sum(lengths) + slack, 1)
    batch = PackCollator(capacity, pad=7)(documents)
    layout = PackLayout.from_lengths(lengths, slack=(capacity or sum(lengths)) - sum(lengths))
    assert torch.equal(batch["cu_seqlens"], layout.cu_seqlens())
    assert torch.equal(batch["seq_idx"][0], layout.seq_idx())
    assert torch.equal(batch["position_ids"][0, : layout.n_tokens], layout.position_ids()[: layout.n_tokens].long())
    # padding counts up: positions of 0 would be as many documents
    assert batch["position_ids"][0, layout.n_tokens :].tolist() == list(range(layout.slack))
    assert batch["max_seqlen"] == layout.max_seqlen
    tokens, labels = batch["input_ids"][0], batch["labels"][0]
    assert torch.equal(tokens, torch.cat([*documents, torch.full((layout.slack,), 7)]))
    begins = {int(start) for start, n in zip(layout.cu_seqlens()[:-1], lengths, strict=True) if n}
    masked = torch.tensor([i in begins or i >= layout.n_tokens for i in range(layout.total_tokens)], dtype=torch.bool)
    assert torch.equal(labels == -100, masked)
    assert torch.equal(labels[~masked], tokens[~masked])


def test_a_piece_goes_on_at_its_position() -> None:
    batch = PackCollator()([(list(range(10)), Piece(4, 6, 9)), [20, 21]])
    assert batch["input_ids"].tolist() == [[6, 7, 8, 20, 21]]
    assert batch["position_ids"].tolist() == [[6, 7, 8, 0, 1]]
    assert batch["labels"].tolist() == [[6, 7, 8, -100, 21]]
    assert batch["shift_labels"].tolist() == [[7, 8, 9, 21, -100]]
    assert batch["pieces"] == (Piece(4, 6, 9), Piece(1, 0, 2))


def test_a_piece_that_goes_on_after_another_document_is_not_predicted_from_it() -> None:
    batch = PackCollator()([[20, 21], (list(range(10)), Piece(4, 6, 9))])
    assert batch["labels"].tolist() == [[-100, 21, -100, 7, 8]]
    assert batch["shift_labels"].tolist() == [[21, -100, 7, 8, 9]]


def test_an_empty_piece_is_one() -> None:
    batch = PackCollator()([([], Piece(7, 0, 0)), ([1, 2, 3], Piece(8, 1, 1)), [5, 6]])
    assert batch["pieces"] == (Piece(7, 0, 0), Piece(8, 1, 1), Piece(2, 0, 2))
    assert batch["input_ids"].tolist() == [[5, 6]]
    assert batch["cu_seqlens"].tolist() == [0, 0, 0, 2]
    assert batch["labels"].tolist() == [[-100, 6]]


@settings(deadline=None, max_examples=50)
@given(lengths=lengths_of, capacity=st.integers(1, 7))
def test_no_cut_costs_a_target(lengths: list[int], capacity: int) -> None:
    documents = [torch.arange(n) + 10 * (j + 1) for j, n in enumerate(lengths)]
    packs = [PackCollator()(pack) for pack in PackStream(documents, capacity, packer="split")]
    tokens = torch.cat([pack["input_ids"][0] for pack in packs])
    for name, shift in (("labels", 0), ("shift_labels", 1)):
        labels = torch.cat([pack[name][0] for pack in packs])
        targets = (labels != -100).nonzero().flatten()
        assert len(targets) == sum(max(n - 1, 0) for n in lengths)
        assert torch.equal(labels[targets], tokens[targets + shift])


def test_features_go_along_and_labels_of_the_document_stay() -> None:
    document = {"input_ids": [1, 2, 3], "labels": [-100, -100, 3], "weight": torch.tensor([0.5, 1.0, 2.0])}
    batch = PackCollator(4)([document])
    assert batch["labels"].tolist() == [[-100, -100, 3, -100]]
    assert batch["weight"].tolist() == [[0.5, 1.0, 2.0, 0.0]]


@pytest.mark.parametrize(
    ("documents", "error", "says"),
    [
        ([], LayoutError, "there are no documents"),
        ([[1, 2, 3], [4, 5]], LayoutError, "the documents have 5 tokens, more than the capacity of 4"),
        ([{"labels": [1]}], ArgumentError, "document 0 has labels, no input_ids"),
        ([{"input_ids": [1, 2], "labels": [1]}], ArgumentError, "labels of document 0 has 1 rows, input_ids 2"),
        ([["a"]], ArgumentError, "input_ids of document 0 is"),
        ([[0.5]], ArgumentError, "input_ids of document 0 is torch.float32"),
        (
            [([1, 2], Piece(0, 0, 3))],
            LayoutError,
            "document 0 has 2 tokens, its piece ends at 3;.* is tokens start",
        ),
        (
            [{"input_ids": [1]}, {"input_ids": [1], "x": [1]}],
            ArgumentError,
            "document 1 has input_ids, labels, shift_labels, x, and document 0",
        ),
    ],
)
def test_wrong_documents(documents: list[Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        PackCollator(4)(documents)


@pytest.mark.parametrize(
    ("given", "says"), [({"capacity": 0}, "capacity is 0"), ({"window": 4}, "window is no argument")]
)
def test_wrong_calls(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        PackCollator(**given)
