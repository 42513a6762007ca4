"""Metadata for adapters: made once per batch, and again when what it was made from has changed."""

import gc
import weakref
from typing import Any

import torch
from torch import Tensor

from packproof.adapters import (
    Gaps,
    cu_seqlens_int32,
    cu_seqlens_int64,
    lengths,
    mask,
    max_seqlen,
    once,
    position_ids,
    seq_idx,
)
from packproof.adapters.metadata import positions


def kept(make: Any, cu_seqlens: Tensor, tokens: int) -> Any:
    return once((make, tokens), lambda: make(cu_seqlens, tokens), cu_seqlens)


def test_it_is_made_once_for_each_batch() -> None:
    cu_seqlens, other = torch.tensor([0, 3, 5]), torch.tensor([0, 3, 5])
    assert kept(seq_idx, cu_seqlens, 5) is kept(seq_idx, cu_seqlens, 5)
    assert kept(seq_idx, cu_seqlens, 5) is not kept(seq_idx, other, 5)


def test_it_is_made_again_after_an_edit_in_place() -> None:
    cu_seqlens = torch.tensor([0, 3, 5])
    assert kept(max_seqlen, cu_seqlens, 5) == 3
    assert kept(positions, cu_seqlens, 6).tolist() == [0, 1, 2, 0, 1, -1]
    cu_seqlens[1] = 1
    assert kept(max_seqlen, cu_seqlens, 5) == 4
    assert kept(seq_idx, cu_seqlens, 6).tolist() == [0, 1, 1, 1, 1, -1]
    assert kept(positions, cu_seqlens, 6).tolist() == [0, 0, 1, 2, 3, -1]


def test_all_describe_the_same_layout() -> None:
    cu_seqlens = torch.tensor([0, 3, 3, 5])
    assert seq_idx(cu_seqlens, 6).tolist() == [0, 0, 0, 2, 2, -1]
    assert position_ids(cu_seqlens, 6).tolist() == [0, 1, 2, 0, 1, 0]
    assert mask(cu_seqlens, 6).tolist() == [True] * 5 + [False]
    assert lengths(cu_seqlens, 6).tolist() == [3, 0, 2]
    assert Gaps(4).cu_seqlens(cu_seqlens, 6).tolist() == [0, 4, 4, 8]
    assert cu_seqlens_int32(cu_seqlens, 6).dtype == torch.int32
    assert cu_seqlens_int64(cu_seqlens, 6) is cu_seqlens


def test_it_is_made_again_for_another_table_or_an_edited_one() -> None:
    cu_seqlens, tables = torch.tensor([0, 2]), [torch.zeros(2), torch.ones(2)]

    def doubled(table: torch.Tensor) -> list[float]:
        return once("doubled", lambda: [2 * x for x in table.tolist()], cu_seqlens, table)

    assert [doubled(table) for table in tables] == [[0, 0], [2, 2]]
    tables[1][0] = 5
    assert doubled(tables[1]) == [10, 2]
    assert doubled(tables[1]) is doubled(tables[1])


def test_offsets_made_in_inference_mode_are_followed_too() -> None:
    with torch.inference_mode():
        offsets = torch.tensor([0, 2, 5])
        assert once("lengths", offsets.diff, offsets).tolist() == [2, 3]
        offsets[1] = 3
        assert once("lengths", offsets.diff, offsets).tolist() == [3, 2]


def test_it_is_freed_with_the_offsets_even_where_they_are_given_twice() -> None:
    cu_seqlens = torch.tensor([0, 2])
    made = once("mask", lambda: torch.ones(3), cu_seqlens, cu_seqlens)
    freed = weakref.ref(made)
    del made, cu_seqlens
    gc.collect()
    assert freed() is None


def test_packs_of_nothing_have_metadata() -> None:
    for cu_seqlens in (torch.tensor([0]), torch.tensor([0, 0])):
        assert max_seqlen(cu_seqlens, 2) == 0
        assert positions(cu_seqlens, 2).tolist() == [-1, -1]
