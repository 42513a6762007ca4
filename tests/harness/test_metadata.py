"""Metadata for adapters: made once a batch, and again where what it was made from has changed."""

import torch

from packproof.harness.metadata import longest, once, positions, seq_idx


def test_it_is_made_once_for_each_batch() -> None:
    cu_seqlens, other = torch.tensor([0, 3, 5]), torch.tensor([0, 3, 5])
    assert seq_idx(cu_seqlens, 5) is seq_idx(cu_seqlens, 5)
    assert seq_idx(cu_seqlens, 5) is not seq_idx(other, 5)


def test_it_is_made_again_after_an_edit_in_place() -> None:
    cu_seqlens = torch.tensor([0, 3, 5])
    assert longest(cu_seqlens) == 3
    assert positions(cu_seqlens, 6).tolist() == [0, 1, 2, 0, 1, -1]
    cu_seqlens[1] = 1
    assert longest(cu_seqlens) == 4
    assert seq_idx(cu_seqlens, 6).tolist() == [0, 1, 1, 1, 1, -1]
    assert positions(cu_seqlens, 6).tolist() == [0, 0, 1, 2, 3, -1]


def test_it_is_made_again_for_another_table_or_an_edited_one() -> None:
    cu_seqlens, tables = torch.tensor([0, 2]), [torch.zeros(2), torch.ones(2)]

    def doubled(table: torch.Tensor) -> list[float]:
        return once("doubled", lambda: [2 * x for x in table.tolist()], cu_seqlens, table)

    assert [doubled(table) for table in tables] == [[0, 0], [2, 2]]
    tables[1][0] = 5
    assert doubled(tables[1]) == [10, 2]
    assert doubled(tables[1]) is doubled(tables[1])


def test_packs_of_nothing_have_metadata() -> None:
    for cu_seqlens in (torch.tensor([0]), torch.tensor([0, 0])):
        assert longest(cu_seqlens) == 0
        assert positions(cu_seqlens, 2).tolist() == [-1, -1]
