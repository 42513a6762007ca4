"""Wrong calls of PackLayout, pack and unpack, the packers, and the conversions of offsets."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from packproof import PackLayout, pack, unpack
from packproof.refs import (
    Piece,
    pack_best_fit,
    pack_in_order,
    pack_with_split,
    padding_rate,
    position_ids_from_cu_seqlens,
    seq_idx_from_cu_seqlens,
)
from tests.wrong_calls.refused import Wrong, assert_refused

# What a user passes by mistake has any type.
layout: Any = PackLayout
piece: Any = Piece
X = torch.zeros(5, 2)
CU = torch.tensor([0, 2, 5])
WHOLE = "a whole number was expected"

LAYOUTS = {
    "lengths is a number": Wrong(lambda: layout(5), ("PackLayout: lengths is 5", "one for each sequence")),
    "lengths is None": Wrong(lambda: layout(None), ("lengths is None", "one for each sequence")),
    "lengths is text": Wrong(lambda: layout("35"), ("lengths is '35'", "whole numbers")),
    "lengths is bytes": Wrong(lambda: layout(b"35"), ("lengths is a bytes", "whole numbers")),
    "lengths holds text": Wrong(lambda: layout(("3",)), ("lengths entry 0 is '3'", WHOLE)),
    "lengths holds None": Wrong(lambda: layout((3, None)), ("lengths entry 1 is None", WHOLE)),
    "lengths holds a flag": Wrong(lambda: layout((True,)), ("lengths entry 0 is True", WHOLE)),
    "lengths is negative": Wrong(lambda: layout((3, -1)), ("lengths entry 1 is -1", "0 or more")),
    "lengths is nested": Wrong(lambda: layout(((3, 4),)), ("lengths entry 0 is (3, 4)", WHOLE)),
    "lengths is missing": Wrong(layout, ("PackLayout: lengths is missing", "lengths, slack, gaps")),
    "slack is None": Wrong(lambda: layout((3,), slack=None), ("PackLayout: slack is None", WHOLE)),
    "slack is text": Wrong(lambda: layout((3,), slack="2"), ("slack is '2'", WHOLE)),
    "slack is a fraction": Wrong(lambda: layout((3,), slack=0.5), ("slack is 0.5", WHOLE)),
    "slack is a flag": Wrong(lambda: layout((3,), slack=True), ("slack is True", WHOLE)),
    "slack is negative": Wrong(lambda: layout((3,), slack=-1), ("slack is -1", "0 or more")),
    "gaps is a number": Wrong(lambda: layout((3,), gaps=1), ("gaps is 1", "one for each sequence")),
    "gaps are too few": Wrong(lambda: layout((3, 4), gaps=(1,)), ("1 gap for 2 sequences",)),
    "gaps is negative": Wrong(lambda: layout((3,), gaps=(-1,)), ("gaps entry 0 is -1", "0 or more")),
    "unknown name": Wrong(lambda: layout((3,), slak=1), ("PackLayout: slak is no argument", "did you mean slack?")),
    "too many arguments": Wrong(lambda: layout((3,), 0, (), 1), ("4 arguments came by position", "at most 3")),
}
FROM_LENGTHS = {
    "a number": Wrong(lambda: layout.from_lengths(5), ("lengths is 5", "one for each sequence")),
    "None": Wrong(lambda: layout.from_lengths(None), ("lengths is None",)),
    "text": Wrong(lambda: layout.from_lengths("12"), ("lengths is '12'",)),
    "a fraction": Wrong(lambda: layout.from_lengths([1.5]), ("lengths entry 0 is 1.5", WHOLE)),
    "an array of fractions": Wrong(lambda: layout.from_lengths(np.array([1.5])), ("lengths entry 0 is", WHOLE)),
    "a float tensor": Wrong(lambda: layout.from_lengths(torch.tensor([1.0])), ("lengths is float32 (1,)", "int32")),
    "a table": Wrong(lambda: layout.from_lengths(torch.ones(2, 2).int()), ("lengths is int32 (2, 2)", "one axis")),
    "a tensor of one number": Wrong(lambda: layout.from_lengths(torch.tensor(5)), ("lengths is int64 ()", "one axis")),
    "no value": Wrong(lambda: layout.from_lengths(torch.ones(2, device="meta").int()), ("on meta", "no values")),
    "slack is text": Wrong(lambda: layout.from_lengths([1], slack="a"), ("slack is 'a'", WHOLE)),
    "unknown name": Wrong(
        lambda: layout.from_lengths([1], gaps=(1,)), ("PackLayout.from_lengths: gaps is no argument", "lengths, slack")
    ),
    "missing": Wrong(layout.from_lengths, ("PackLayout.from_lengths: lengths is missing",)),
}
FROM_OFFSETS = {
    "a list": Wrong(lambda: layout.from_cu_seqlens([0, 5]), ("cu_seqlens is a list", "int32 or int64 tensor (s + 1,)")),
    "None": Wrong(lambda: layout.from_cu_seqlens(None), ("cu_seqlens is None", "int32 or int64 tensor")),
    "floats": Wrong(lambda: layout.from_cu_seqlens(CU.float()), ("cu_seqlens is float32", "int32 or int64")),
    "flags": Wrong(lambda: layout.from_cu_seqlens(CU.bool()), ("cu_seqlens is bool", "int32 or int64")),
    "a table": Wrong(lambda: layout.from_cu_seqlens(CU[None]), ("shape (1, 3)", "(s + 1,)")),
    "nothing": Wrong(lambda: layout.from_cu_seqlens(CU[:0]), ("shape (0,)", "[0] for no sequences")),
    "decreases": Wrong(lambda: layout.from_cu_seqlens(torch.tensor([0, 5, 3])), ("decreases from 5 to 3", "entry 2")),
    "starts late": Wrong(lambda: layout.from_cu_seqlens(torch.tensor([2, 5])), ("starts at 2", "0 was expected")),
    "no value": Wrong(lambda: layout.from_cu_seqlens(CU.to("meta")), ("cu_seqlens is on meta", "no values")),
    "too few tokens": Wrong(lambda: layout.from_cu_seqlens(CU, 4), ("ends at 5", "4 tokens")),
    "negative tokens": Wrong(lambda: layout.from_cu_seqlens(CU, -4), ("total_tokens is -4", "0 or more")),
    "a fraction of tokens": Wrong(lambda: layout.from_cu_seqlens(CU, 8.0), ("total_tokens is 8.0", WHOLE)),
    "text for tokens": Wrong(lambda: layout.from_cu_seqlens(CU, "8"), ("total_tokens is '8'", WHOLE)),
    "unknown name": Wrong(
        lambda: layout.from_cu_seqlens(CU, total=8), ("from_cu_seqlens: total is no argument", "mean total_tokens?")
    ),
}
FROM_IDS = {
    "ids are a list": Wrong(lambda: layout.from_seq_idx([0, 1]), ("seq_idx is a list", "int32 or int64 tensor")),
    "ids are None": Wrong(lambda: layout.from_seq_idx(None), ("seq_idx is None", "int32 or int64 tensor")),
    "ids have a batch": Wrong(lambda: layout.from_seq_idx(CU[None]), ("seq_idx is int64 (1, 3)", "one axis")),
    "ids are floats": Wrong(lambda: layout.from_seq_idx(CU.float()), ("seq_idx is float32", "int32 or int64")),
    "ids decrease": Wrong(lambda: layout.from_seq_idx(torch.tensor([1, 0])), ("decreases to 0 at token 1",)),
    "ids below -1": Wrong(lambda: layout.from_seq_idx(torch.tensor([-2])), ("seq_idx is -2 at token 0",)),
    "sequences are text": Wrong(lambda: layout.from_seq_idx(CU, "3"), ("n_sequences is '3'", WHOLE)),
    "sequences are negative": Wrong(lambda: layout.from_seq_idx(CU[:0], -1), ("n_sequences is -1", "0 or more")),
    "too few sequences": Wrong(lambda: layout.from_seq_idx(CU, 2), ("seq_idx is 2 at token 1", "below 2")),
    "unknown name": Wrong(lambda: layout.from_seq_idx(CU, sequences=2), ("from_seq_idx: sequences is no argument",)),
    "positions are a list": Wrong(lambda: layout.from_position_ids([0]), ("position_ids is a list", "tensor")),
    "positions jump": Wrong(lambda: layout.from_position_ids(torch.tensor([0, 2])), ("position_ids is 2 at token 1",)),
    "positions and slack": Wrong(lambda: layout.from_position_ids(CU[:1], slack=2), ("slack is 2", "has 1 row")),
    "slack is text": Wrong(lambda: layout.from_position_ids(CU[:1], slack="1"), ("slack is '1'", WHOLE)),
    "slack is negative": Wrong(lambda: layout.from_position_ids(CU[:1], slack=-1), ("slack is -1", "0 or more")),
}
GIVEN = layout((2, 3))
FORMS = {
    "offsets of a layout with gaps": Wrong(lambda: layout((2, 3), gaps=(1, 0)).cu_seqlens(), ("gaps (1, 0)",)),
    "offsets as floats": Wrong(lambda: GIVEN.cu_seqlens(dtype=torch.float32), ("dtype is torch.float32", "int64")),
    "offsets as text": Wrong(lambda: GIVEN.cu_seqlens(dtype="int32"), ("dtype is int32", "torch.int32")),
    "too many for int32": Wrong(lambda: layout((2**31,)).cu_seqlens(), ("2147483648 tokens", "dtype=torch.int64")),
    "offsets on no device": Wrong(lambda: GIVEN.cu_seqlens("gpu"), ("PackLayout: device is 'gpu'", "cannot be used")),
    "offsets on a number": Wrong(lambda: GIVEN.cu_seqlens(2.5), ("device is 2.5", "cannot be used")),
    "offsets, unknown name": Wrong(lambda: GIVEN.cu_seqlens(devices="cpu"), ("devices is no", "did you mean device?")),
    "seq_idx on no device": Wrong(lambda: GIVEN.seq_idx("gpu"), ("device is 'gpu'", "cannot be used")),
    "seq_idx, unknown name": Wrong(lambda: GIVEN.seq_idx(dtype=torch.int32), ("PackLayout.seq_idx: dtype is no",)),
    "positions on no device": Wrong(lambda: GIVEN.position_ids("gpu"), ("device is 'gpu'", "cannot be used")),
    "positions, one too many": Wrong(lambda: GIVEN.position_ids("cpu", 2), ("2 arguments came", "at most 1")),
}
packs: Any = pack
unpacks: Any = unpack
PACK = {
    "one tensor": Wrong(lambda: packs(X), ("pack: tensors is float32 (5, 2) on cpu", "in a list")),
    "None": Wrong(lambda: packs(None), ("tensors is None", "one tensor (t, ...) for each sequence")),
    "a number": Wrong(lambda: packs(5), ("tensors is an int", "one tensor")),
    "nothing": Wrong(lambda: packs([]), ("no sequences given", "at least one")),
    "an empty generator": Wrong(lambda: packs(iter([])), ("no sequences given",)),
    "lists": Wrong(lambda: packs([[1, 2], [3]]), ("sequence 0 is a list", "a tensor (t, ...)")),
    "an array": Wrong(lambda: packs([X, np.zeros((1, 2))]), ("sequence 1 is an ndarray", "a tensor")),
    "text": Wrong(lambda: packs("ab"), ("sequence 0 is a str", "a tensor")),
    "no token axis": Wrong(lambda: packs([torch.tensor(1.0)]), ("sequence 0 has no token axis", "(t, ...)")),
    "another width": Wrong(lambda: packs([X, X[:, :1]]), ("sequence 1 is float32 (5, 1)", "sequence 0 is")),
    "another dtype": Wrong(lambda: packs([X, X.double()]), ("sequence 1 is float64", "sequence 0 is float32")),
    "another device": Wrong(lambda: packs([X, X.to("meta")]), ("on meta", "on cpu")),
    "slack is negative": Wrong(lambda: packs([X], -1), ("pack: slack is -1", "0 or more")),
    "slack is text": Wrong(lambda: packs([X], slack="1"), ("pack: slack is '1'", WHOLE)),
    "two tensors": Wrong(lambda: packs(X, X), ("tensors is float32 (5, 2)", "in a list")),
    "unknown name": Wrong(lambda: packs([X], padding=1), ("pack: padding is no argument", "tensors, slack")),
    "unpack by offsets": Wrong(
        lambda: unpacks(X, CU), ("unpack: layout is int64 (3,)", "PackLayout.from_cu_seqlens(cu_seqlens, len(packed))")
    ),
    "unpack by lengths": Wrong(lambda: unpacks(X, [2, 3]), ("layout is a list", "a PackLayout was expected")),
    "unpack by None": Wrong(lambda: unpacks(X, None), ("layout is None", "a PackLayout was expected")),
    "unpack a list": Wrong(lambda: unpacks([1, 2], layout((2,))), ("packed is a list", "a tensor (t, ...)")),
    "unpack another size": Wrong(lambda: unpacks(X, layout((2,))), ("packed has 5 rows", "the layout has 2")),
    "unpack no rows": Wrong(lambda: unpacks(torch.tensor(1), layout((1,))), ("packed has 0 rows",)),
    "unpack without a layout": Wrong(lambda: unpacks(X), ("unpack: layout is missing", "packed, layout")),
}
PACKERS = {"pack_in_order": pack_in_order, "pack_best_fit": pack_best_fit, "pack_with_split": pack_with_split}


def of_each_packer() -> dict[str, Wrong]:
    found: dict[str, Wrong] = {}
    for name, packer in PACKERS.items():
        call: Any = packer
        found |= {
            f"{name}: lengths is a number": Wrong(partial(call, 5, 8), ("lengths is 5",)),
            f"{name}: lengths holds text": Wrong(partial(call, ["a"], 8), ("entry 0 is 'a'", WHOLE)),
            f"{name}: capacity is text": Wrong(partial(call, [3], "8"), (f"{call.__name__}: capacity is '8'", WHOLE)),
            f"{name}: capacity is a fraction": Wrong(partial(call, [3], 8.0), ("capacity is 8.0", WHOLE)),
            f"{name}: capacity is 0": Wrong(partial(call, [3], 0), ("capacity is 0", "1 or more")),
            f"{name}: capacity is missing": Wrong(partial(call, [3]), (f"{name}: capacity is missing",)),
            f"{name}: unknown name": Wrong(
                partial(call, [3], size=8), (f"{name}: size is no argument", "lengths, capacity")
            ),
        }
    return found


split: Any = pack_with_split
best: Any = pack_best_fit
rate: Any = padding_rate
PACKING = of_each_packer() | {
    "a sequence too long": Wrong(lambda: pack_in_order([9], 8), ("sequence 0 has 9 tokens", "pack_with_split")),
    "a window of text": Wrong(lambda: best([3], 8, "2"), ("pack_best_fit: window is '2'", WHOLE)),
    "a window of nothing": Wrong(lambda: best([3], 8, 0), ("window is 0", "1 or more")),
    "a window of None": Wrong(lambda: best([3], 8, None), ("window is None", WHOLE)),
    "splitting with a window": Wrong(lambda: split([3], 8, window=2), ("window is no argument",)),
    "rate of a number": Wrong(lambda: rate(5, 8), ("padding_rate: packs is an int",)),
    "rate of lengths": Wrong(lambda: rate([3], 8), ("padding_rate: pack 0 is an int",)),
    "rate of lists of lengths": Wrong(lambda: rate([[3]], 8), ("pack 0 holds an int", "pieces were expected")),
    "rate without capacity": Wrong(lambda: rate([]), ("padding_rate: capacity is missing",)),
    "rate with no capacity": Wrong(lambda: rate([], 0), ("capacity is 0", "1 or more")),
    "rate of a pack too full": Wrong(lambda: rate([(Piece(0, 0, 9),)], 8), ("pack 0 has 9 tokens", "capacity is 8")),
    "a piece that ends early": Wrong(lambda: piece(0, 5, 3), ("Piece: stop is 3", "5 or more")),
    "a piece from before": Wrong(lambda: piece(0, -1, 3), ("Piece: start is -1", "0 or more")),
    "a piece of text": Wrong(lambda: piece("0", 0, 3), ("Piece: sequence is '0'", WHOLE)),
    "a piece without an end": Wrong(lambda: piece(0, 0), ("Piece: stop is missing",)),
}


def of_each_conversion() -> dict[str, Wrong]:
    found: dict[str, Wrong] = {}
    for convert in (seq_idx_from_cu_seqlens, position_ids_from_cu_seqlens):
        call: Any = convert
        name = convert.__name__
        found |= {
            f"{name}: a list": Wrong(partial(call, [0, 5], 5), ("cu_seqlens is a list", "tensor (s + 1,)")),
            f"{name}: floats": Wrong(partial(call, CU.float(), 5), ("cu_seqlens is float32",)),
            f"{name}: a table": Wrong(partial(call, CU[None], 5), ("shape (1, 3)",)),
            f"{name}: a fraction of tokens": Wrong(partial(call, CU, 5.0), ("total_tokens is 5.0", WHOLE)),
            f"{name}: negative tokens": Wrong(partial(call, CU, -5), ("total_tokens is -5", "0 or more")),
            f"{name}: tokens are None": Wrong(partial(call, CU, None), ("total_tokens is None", WHOLE)),
            f"{name}: tokens are missing": Wrong(partial(call, CU), ("total_tokens is missing",)),
        }
    return found


TABLE = {
    f"{group}: {name}": wrong
    for group, entries in {
        "PackLayout": LAYOUTS,
        "from_lengths": FROM_LENGTHS,
        "from_cu_seqlens": FROM_OFFSETS,
        "from_ids": FROM_IDS,
        "forms": FORMS,
        "pack": PACK,
        "packers": PACKING,
        "conversions": of_each_conversion(),
    }.items()
    for name, wrong in entries.items()
}


@pytest.mark.parametrize("wrong", TABLE.values(), ids=TABLE.keys())
def test_it_is_refused(wrong: Wrong) -> None:
    assert_refused(wrong)


def test_what_looks_odd_and_is_right_is_taken() -> None:
    assert pack(iter([X, X[:1]]))[1] == PackLayout((5, 1))
    assert PackLayout.from_lengths(np.array([2, 3])) == PackLayout(n for n in (2, 3))  # type: ignore[arg-type]
    assert pack_in_order(torch.tensor([2, 3]), np.int64(8)) == [(Piece(0, 0, 2), Piece(1, 0, 3))]  # type: ignore[arg-type]
    assert padding_rate(iter(pack_in_order([2, 2], 8)), 8) == 0.5
