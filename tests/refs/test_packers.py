"""Packers: every token exactly once, no pack over its capacity, and how much padding each leaves."""

import random
from collections.abc import Callable, Iterator
from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packproof.refs import (
    LayoutError,
    Piece,
    pack_best_fit,
    pack_first_fit,
    pack_in_order,
    pack_with_split,
    packs_of,
    padding_rate,
)

CAPACITY = 16
edges = st.sampled_from([0, 1, CAPACITY // 2, CAPACITY - 1, CAPACITY])
whole_lengths = st.lists(edges | st.integers(0, CAPACITY), max_size=40)
any_lengths = st.lists(edges | st.integers(0, 3 * CAPACITY), max_size=20)
PACKERS: dict[str, Callable[..., list[tuple[Piece, ...]]]] = {
    "in_order": pack_in_order,
    "first_fit": pack_first_fit,
    "best_fit": pack_best_fit,
    "split": pack_with_split,
}
fast = settings(deadline=None, max_examples=100)


def best_fit_of_four(lengths: list[int], capacity: int) -> list[tuple[Piece, ...]]:
    return pack_best_fit(lengths, capacity, window=4)


def first_fit_of_two(lengths: list[int], capacity: int) -> list[tuple[Piece, ...]]:
    return pack_first_fit(lengths, capacity, window=2)


@pytest.mark.parametrize(
    "packer", [pack_in_order, pack_first_fit, first_fit_of_two, pack_best_fit, best_fit_of_four, pack_with_split]
)
@fast
@given(lengths=whole_lengths)
def test_every_token_once_and_never_over_capacity(
    packer: Callable[..., list[tuple[Piece, ...]]], lengths: list[int]
) -> None:
    packs = packer(lengths, CAPACITY)
    assert all(packs)
    assert all(sum(map(len, pack)) <= CAPACITY for pack in packs)
    tokens = sorted((p.sequence, i) for pack in packs for p in pack for i in range(p.start, p.stop))
    assert tokens == [(j, i) for j, n in enumerate(lengths) for i in range(n)]
    assert {p.sequence for pack in packs for p in pack} == set(range(len(lengths)))  # the empty ones as well
    assert all(list(pack) == sorted(pack) for pack in packs)


@pytest.mark.parametrize("packer", [pack_in_order, pack_first_fit, first_fit_of_two, pack_best_fit, best_fit_of_four])
@fast
@given(lengths=whole_lengths)
def test_only_the_splitting_packer_splits(packer: Callable[..., list[tuple[Piece, ...]]], lengths: list[int]) -> None:
    pieces = sorted(piece for pack in packer(lengths, CAPACITY) for piece in pack)
    assert pieces == [Piece(j, 0, n) for j, n in enumerate(lengths)]


@fast
@given(lengths=whole_lengths)
def test_in_order_keeps_the_order_and_opens_a_pack_only_when_it_must(lengths: list[int]) -> None:
    packs = pack_in_order(lengths, CAPACITY)
    assert [p.sequence for pack in packs for p in pack] == list(range(len(lengths)))
    assert all(sum(map(len, a)) + len(b[0]) > CAPACITY for a, b in pairwise(packs))


@fast
@given(lengths=whole_lengths, window=st.integers(1, 5))
def test_best_fit_looks_no_further_than_its_window_and_starves_no_sequence(lengths: list[int], window: int) -> None:
    packs = pack_best_fit(lengths, CAPACITY, window)
    placed: set[int] = set()
    for number, pack in enumerate(packs):
        oldest = min(set(range(len(lengths))) - placed)
        assert pack[0].sequence == oldest
        assert max(p.sequence for p in pack) < len(placed) + len(pack) + window - 1
        assert all(p.sequence > number - window for p in pack)
        placed |= {p.sequence for p in pack}


def test_best_fit_takes_the_longest_that_fits() -> None:
    packs = pack_best_fit([5, 2, 3, 4, 1, 9], 10, window=6)
    assert [[p.sequence for p in pack] for pack in packs] == [[0, 3, 4], [1, 2], [5]]


@fast
@given(lengths=any_lengths)
def test_split_fills_every_pack_and_marks_what_continues(lengths: list[int]) -> None:
    packs = pack_with_split(lengths, CAPACITY)
    assert all(sum(map(len, pack)) == CAPACITY for pack in packs[:-1])
    assert len(packs) == max(-(-sum(lengths) // CAPACITY), bool(lengths))
    for before, pack in pairwise(packs):
        if pack[0].continues:
            assert (before[-1].sequence, before[-1].stop) == (pack[0].sequence, pack[0].start)
        else:
            assert before[-1].stop == lengths[before[-1].sequence]
    assert not any(piece.continues for pack in packs for piece in pack[1:])
    assert not packs or not packs[0][0].continues


def test_split_of_a_long_sequence() -> None:
    assert pack_with_split([3, 0, 9], 4) == [
        (Piece(0, 0, 3), Piece(1, 0, 0), Piece(2, 0, 1)),
        (Piece(2, 1, 5),),
        (Piece(2, 5, 9),),
    ]


def test_padding_on_a_realistic_stream() -> None:
    """Log-normal lengths with a median of 400 tokens into packs of 4096: in order, padding is far larger."""
    draw = random.Random(0)
    lengths = [min(4096, max(1, round(draw.lognormvariate(6, 1)))) for _ in range(2000)]
    in_order, best_fit, split = (
        padding_rate(packer(lengths, 4096), 4096) for packer in (pack_in_order, pack_best_fit, pack_with_split)
    )
    assert 0.10 < in_order < 0.20
    assert best_fit < 0.01
    packs = len(pack_with_split(lengths, 4096))
    assert split == pytest.approx(1 - sum(lengths) / (packs * 4096))
    assert split < 1 / packs  # the rest of the last pack alone


def test_padding_rate() -> None:
    assert padding_rate([(Piece(0, 0, 3),), (Piece(1, 0, 4), Piece(2, 0, 1))], 8) == 0.5
    assert padding_rate([], 8) == 0.0


MESSAGES = {
    "too long": (
        lambda: pack_in_order([3, 9], 8),
        "sequence 1 has 9 tokens but a pack's capacity is 8\n"
        "    Use a larger capacity, cut the sequence, or use pack_with_split.",
    ),
    "too long for best fit": (
        lambda: pack_best_fit([9], 8),
        "sequence 0 has 9 tokens but a pack's capacity is 8\n"
        "    Use a larger capacity, cut the sequence, or use pack_with_split.",
    ),
    "capacity": (lambda: pack_with_split([3], 0), "pack_with_split: capacity is 0; 1 or more was expected"),
    "window": (lambda: pack_best_fit([3], 8, 0), "pack_best_fit: window is 0; 1 or more was expected"),
    "negative length": (lambda: pack_in_order([1, -2], 8), "PackLayout: lengths entry 1 is -2; 0 or more was expected"),
}


@pytest.mark.parametrize(("wrong", "text"), MESSAGES.values(), ids=MESSAGES.keys())
def test_messages(wrong: Callable[[], object], text: str) -> None:
    with pytest.raises(LayoutError) as caught:
        wrong()
    assert str(caught.value) == text


@fast
@given(lengths=whole_lengths, window=st.integers(1, 4))
def test_first_fit_leaves_no_room_that_was_open(lengths: list[int], window: int) -> None:
    """A sequence opens a pack only where none of the open ones had room when it came."""
    for number, pack in enumerate(packs := pack_first_fit(lengths, CAPACITY, window)):
        opened = pack[0].sequence
        for before in packs[max(number - window, 0) : number]:
            held = sum(len(piece) for piece in before if piece.sequence < opened)
            assert held + len(pack[0]) > CAPACITY or number - packs.index(before) >= window


@fast
@given(lengths=whole_lengths)
def test_a_stream_has_the_packs_of_the_list(lengths: list[int]) -> None:
    for name, packer in PACKERS.items():
        assert list(packs_of(iter(lengths), CAPACITY, name)) == packer(lengths, CAPACITY)
    assert list(packs_of(lengths, CAPACITY, "best_fit", 4)) == best_fit_of_four(lengths, CAPACITY)


@pytest.mark.parametrize("name", ["in_order", "first_fit", "best_fit", "split"])
def test_a_stream_is_read_no_further_than_its_packer_needs(name: str) -> None:
    read = 0

    def lengths() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield 5

    window = None if name in ("in_order", "split") else 4
    packs = packs_of(lengths(), CAPACITY, name, window)
    assert len(list(islice(packs, 10))) == 10
    assert read <= 3 * 10 + 3 * (window or 1) + 1
