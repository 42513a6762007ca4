"""PackLayout: round trips between its four forms, what is rejected as not a pack, and pack and unpack."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from packproof.refs import (
    LayoutError,
    PackLayout,
    pack,
    position_ids_from_cu_seqlens,
    seq_idx_from_cu_seqlens,
    unpack,
)

fast = settings(deadline=None, max_examples=150)
layouts = st.builds(PackLayout, st.lists(st.integers(0, 6), max_size=8).map(tuple), st.integers(0, 4))


@st.composite
def gapped(draw: st.DrawFn) -> PackLayout:
    lengths = draw(st.lists(st.integers(0, 4), max_size=6))
    gaps = draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    return PackLayout(tuple(lengths), draw(st.integers(0, 3)), tuple(gaps))


@fast
@given(layout=layouts)
def test_lengths_and_offsets(layout: PackLayout) -> None:
    cu_seqlens = layout.cu_seqlens()
    assert cu_seqlens.dtype == torch.int32
    assert cu_seqlens.diff().tolist() == list(layout.lengths)
    assert PackLayout.from_cu_seqlens(cu_seqlens, layout.total_tokens) == layout
    assert PackLayout.from_cu_seqlens(cu_seqlens.long()).lengths == layout.lengths
    assert PackLayout.from_lengths(cu_seqlens.diff(), layout.slack) == layout
    assert PackLayout.from_lengths(iter(layout.lengths), layout.slack) == layout


@fast
@given(layout=gapped())
def test_seq_idx_round_trip(layout: PackLayout) -> None:
    """The rows of every sequence come back; the gap around an empty sequence may move to its other side."""
    again = PackLayout.from_seq_idx(layout.seq_idx(), layout.n_sequences)
    assert again.lengths == layout.lengths
    assert again.total_tokens == layout.total_tokens
    assert torch.equal(again.seq_idx(), layout.seq_idx())
    if 0 not in layout.lengths:
        assert again == layout


@fast
@given(lengths=st.lists(st.integers(1, 6), max_size=8), slack=st.integers(0, 3))
def test_position_ids_round_trip(lengths: list[int], slack: int) -> None:
    layout = PackLayout(tuple(lengths), slack)
    assert PackLayout.from_position_ids(layout.position_ids(), slack) == layout


@fast
@given(layout=layouts, dtype=st.sampled_from([torch.int32, torch.int64]))
def test_device_conversions_are_those_of_the_layout(layout: PackLayout, dtype: torch.dtype) -> None:
    cu_seqlens = layout.cu_seqlens(dtype=dtype)
    for convert, want in (
        (seq_idx_from_cu_seqlens, layout.seq_idx()),
        (position_ids_from_cu_seqlens, layout.position_ids()),
    ):
        found = convert(cu_seqlens, layout.total_tokens)
        assert found.dtype == torch.int32
        assert torch.equal(found, want)


def test_device_conversions_read_no_value() -> None:
    cu_seqlens = torch.empty(4, dtype=torch.int32, device="meta")  # a read-back would raise here
    assert seq_idx_from_cu_seqlens(cu_seqlens, 7).shape == (7,)
    assert position_ids_from_cu_seqlens(cu_seqlens, 7).shape == (7,)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="Inductor searches a slice wrongly on a GPU")
def test_device_conversions_are_the_same_through_torch_compile() -> None:
    cu_seqlens = torch.tensor([0, 0, 5, 5, 5, 12, 12], device="cuda")
    for convert in (seq_idx_from_cu_seqlens, position_ids_from_cu_seqlens):
        compiled = torch.compile(convert)
        assert torch.equal(compiled(cu_seqlens, 14), convert(cu_seqlens, 14))


def test_rows_of_a_layout_with_gaps() -> None:
    layout = PackLayout((2, 0, 3), slack=1, gaps=(1, 2, 0))
    assert (layout.n_sequences, layout.n_tokens, layout.total_tokens, layout.max_seqlen) == (3, 5, 9, 3)
    assert layout.offsets == (0, 3, 5)
    assert layout.slices == (slice(0, 2), slice(3, 3), slice(5, 8))
    assert layout.seq_idx().tolist() == [0, 0, -1, -1, -1, 2, 2, 2, -1]
    assert layout.position_ids().tolist() == [0, 1, 0, 0, 0, 0, 1, 2, 0]


def test_a_gap_after_the_last_sequence_is_slack() -> None:
    assert PackLayout((2, 1), slack=1, gaps=(0, 3)) == PackLayout((2, 1), slack=4)
    assert PackLayout((2, 1), gaps=(0, 0)).gaps == ()


def test_layouts_are_values() -> None:
    assert hash(PackLayout((1, 2))) == hash(PackLayout([1, 2]))
    with pytest.raises(AttributeError):
        PackLayout((1,)).slack = 3
    assert PackLayout(()) == PackLayout.from_cu_seqlens(torch.tensor([0]))
    assert PackLayout(()).max_seqlen == 0


def test_indices_that_are_left_out_are_empty_sequences() -> None:
    ids = torch.tensor([-1, 1, 1, 4])
    assert PackLayout.from_seq_idx(ids) == PackLayout((0, 2, 0, 0, 1), gaps=(1, 0, 0, 0, 0))
    assert PackLayout.from_seq_idx(ids, n_sequences=7).lengths == (0, 2, 0, 0, 1, 0, 0)


def ids(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


MESSAGES: dict[str, tuple[Callable[[], object], str]] = {
    "negative length": (lambda: PackLayout((3, -1)), "PackLayout: lengths entry 1 is -1; 0 or more was expected"),
    "fractional length": (
        lambda: PackLayout((3, 1.5)),
        "PackLayout: lengths entry 1 is 1.5; a whole number was expected",
    ),
    "negative slack": (lambda: PackLayout((3,), slack=-1), "PackLayout: slack is -1; 0 or more was expected"),
    "gaps": (
        lambda: PackLayout((3, 4), gaps=(1,)),
        "PackLayout: 1 gap for 2 sequences; one gap after each was expected",
    ),
    "float lengths": (
        lambda: PackLayout.from_lengths(torch.tensor([1.0])),
        "PackLayout: lengths is float32 (1,) on cpu; an int32 or int64 tensor of one axis was expected",
    ),
    "decreasing": (
        lambda: PackLayout.from_cu_seqlens(ids(0, 5, 3)),
        "PackLayout: cu_seqlens decreases from 5 to 3 at entry 2\n"
        "    cu_seqlens       int32 (3,) [0, 5, 3]\n"
        "    Offsets count tokens from 0, never decrease and may not pass the last one.",
    ),
    "not from 0": (
        lambda: PackLayout.from_cu_seqlens(ids(2, 5)),
        "PackLayout: cu_seqlens starts at 2 but 0 was expected\n"
        "    cu_seqlens       int32 (2,) [2, 5]\n"
        "    Offsets count tokens from 0, never decrease and may not pass the last one.",
    ),
    "past the tokens": (
        lambda: PackLayout.from_cu_seqlens(ids(0, 5), total_tokens=4),
        "PackLayout: cu_seqlens ends at 5 but the pack has 4 tokens\n"
        "    cu_seqlens       int32 (2,) [0, 5]\n"
        "    Offsets count tokens from 0, never decrease and may not pass the last one.",
    ),
    "float offsets": (
        lambda: PackLayout.from_cu_seqlens(torch.tensor([0.0, 5.0])),
        "PackLayout: cu_seqlens is float32 but int32 or int64 was expected\n"
        "    Offsets count tokens: cu_seqlens.to(torch.int32)",
    ),
    "recurring id": (
        lambda: PackLayout.from_seq_idx(ids(0, 0, 1, 0)),
        "PackLayout: seq_idx recurs to 0 at token 3\n"
        "    The tokens of a sequence lie together, and sequences are numbered as they lie.",
    ),
    "id that recurs after a gap": (
        lambda: PackLayout.from_seq_idx(ids(0, -1, 0)),
        "PackLayout: seq_idx recurs to 0 at token 2\n"
        "    The tokens of a sequence lie together, and sequences are numbered as they lie.",
    ),
    "id that decreases": (
        lambda: PackLayout.from_seq_idx(ids(2, 1)),
        "PackLayout: seq_idx decreases to 1 at token 1\n"
        "    The tokens of a sequence lie together, and sequences are numbered as they lie.",
    ),
    "id below -1": (
        lambda: PackLayout.from_seq_idx(ids(0, -2)),
        "PackLayout: seq_idx is -2 at token 1; -1, or 0 or more, was expected",
    ),
    "id past the sequences": (
        lambda: PackLayout.from_seq_idx(ids(0, 3), n_sequences=3),
        "PackLayout: seq_idx is 3 at token 1; -1, or 0 or more and below 3, was expected",
    ),
    "unused rows first": (
        lambda: PackLayout.from_seq_idx(ids(-1, -1, 0)),
        "PackLayout: seq_idx starts with 2 unused rows; sequence 0 starts at token 0",
    ),
    "batched ids": (
        lambda: PackLayout.from_seq_idx(ids(0, 1)[None]),
        "PackLayout: seq_idx is int32 (1, 2) on cpu; an int32 or int64 tensor of one axis was expected",
    ),
    "position that jumps": (
        lambda: PackLayout.from_position_ids(ids(0, 1, 3)),
        "PackLayout: position_ids is 3 at token 2; 0 or 2 was expected",
    ),
    "first position": (
        lambda: PackLayout.from_position_ids(ids(1, 2)),
        "PackLayout: position_ids is 1 at token 0; 0 was expected",
    ),
    "slack of positions": (
        lambda: PackLayout.from_position_ids(ids(0), slack=2),
        "PackLayout: slack is 2 but position_ids has 1 row",
    ),
    "offsets of gaps": (
        lambda: PackLayout((2, 1), gaps=(3, 0)).cu_seqlens(),
        "PackLayout: cu_seqlens cannot express the gaps (3, 0); use offsets and lengths, or seq_idx",
    ),
    "offset dtype": (
        lambda: PackLayout((2,)).cu_seqlens(dtype=torch.float32),
        "PackLayout: dtype is torch.float32 but torch.int32 or torch.int64 was expected",
    ),
    "too many tokens": (
        lambda: PackLayout((2**31,)).cu_seqlens(),
        "PackLayout: 2147483648 tokens do not fit int32 offsets; ask for dtype=torch.int64",
    ),
    "pack of nothing": (
        lambda: pack([]),
        "pack: no sequences given; at least one is needed to know shape and dtype (it may have no tokens)",
    ),
    "pack of scalars": (
        lambda: pack([torch.tensor(1.0)]),
        "pack: sequence 0 has no token axis; shape (t, ...) was expected",
    ),
    "pack of two shapes": (
        lambda: pack([torch.zeros(2, 3), torch.zeros(2, 4)]),
        "pack: sequence 1 is float32 (2, 4) on cpu but sequence 0 is float32 (2, 3) on cpu",
    ),
    "pack of two dtypes": (
        lambda: pack([torch.zeros(2), torch.zeros(2).half()]),
        "pack: sequence 1 is float16 (2,) on cpu but sequence 0 is float32 (2,) on cpu",
    ),
    "unpack": (
        lambda: unpack(torch.zeros(4, 2), PackLayout((3,))),
        "unpack: packed has 4 rows but the layout has 3: PackLayout(lengths=(3,), slack=0, gaps=())",
    ),
}


@pytest.mark.parametrize(("wrong", "text"), MESSAGES.values(), ids=MESSAGES.keys())
def test_messages(wrong: Callable[[], object], text: str) -> None:
    with pytest.raises(LayoutError) as caught:
        wrong()
    assert str(caught.value) == text


@pytest.mark.parametrize("slack", [0, 2])
def test_unpack_undoes_pack_in_values_and_gradients(slack: int) -> None:
    sequences = [torch.randn(n, 3, requires_grad=True) for n in (2, 0, 4)]
    packed, layout = pack(sequences, slack)
    assert layout == PackLayout((2, 0, 4), slack)
    assert not packed[layout.n_tokens :].any()
    again = unpack(packed, layout)
    assert all(map(torch.equal, again, sequences))
    cotangents = [torch.randn_like(x) for x in sequences]
    assert all(map(torch.equal, torch.autograd.grad(again, sequences, cotangents), cotangents))


def test_unpack_skips_gaps_and_gives_views() -> None:
    packed = torch.arange(9.0)
    parts = unpack(packed, PackLayout((2, 0, 3), slack=1, gaps=(1, 2, 0)))
    assert [part.tolist() for part in parts] == [[0, 1], [], [5, 6, 7]]
    assert parts[2].data_ptr() == packed[5:].data_ptr()
    assert unpack(torch.zeros(2, 3), PackLayout((), slack=2)) == []
