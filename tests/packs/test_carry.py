"""Documents that packs cut: with states that go on, a training step has the gradients of the documents whole."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from packproof import refs
from packproof.packs import carried_states
from packproof.refs import ArgumentError, LayoutError, Piece, pack_with_split

CAPACITY = 5
CHANNELS, STATES = 3, 2
Parameters = dict[str, Tensor]


def parameters() -> Parameters:
    generator = torch.Generator().manual_seed(0)
    shapes = {"step": (CHANNELS,), "A": (CHANNELS, STATES), "B": (CHANNELS, STATES), "C": (CHANNELS, STATES)}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for name, shape in shapes.items()
    }


def scan(x: Tensor, p: Parameters, cu_seqlens: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor]:
    delta = torch.nn.functional.softplus(x * p["step"])
    returned: Any = refs.selective_scan(
        *(x, delta, -p["A"].exp(), x @ p["B"], x @ p["C"]),
        cu_seqlens=cu_seqlens,
        initial_states=states,
        return_final_states=True,
    )
    return returned


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def step(documents: list[Tensor], *, through: bool, wrong: bool = False) -> tuple[Tensor, list[Tensor]]:
    """The loss of all packs and its gradients."""
    p, states, losses = parameters(), None, []
    for pack in pack_with_split(map(len, documents), CAPACITY):
        x = torch.cat([documents[piece.sequence][piece.start : piece.stop] for piece in pack])
        initial = None if wrong else carried_states(states, pack, through=through)
        y, states = scan(x, p, offsets([len(piece) for piece in pack]), initial)
        losses.append(y.square().sum())
    loss = torch.stack(losses).sum()
    return loss.detach(), list(torch.autograd.grad(loss, list(p.values())))


def whole(documents: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    p = parameters()
    losses = [scan(x, p, offsets([len(x)]), None)[0].square().sum() for x in documents]
    loss = torch.stack(losses).sum()
    return loss.detach(), list(torch.autograd.grad(loss, list(p.values())))


def drawn(lengths: list[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(n, CHANNELS, generator=generator, dtype=torch.float64) for n in lengths]


@settings(deadline=None, max_examples=15)
@given(lengths=st.lists(st.integers(0, 3 * CAPACITY), min_size=1, max_size=4).filter(any))
def test_a_cut_changes_no_gradient(lengths: list[int]) -> None:
    documents = drawn(lengths)
    expected, got = whole(documents), step(documents, through=True)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_without_through_the_values_are_those_of_the_whole_and_gradients_end_at_the_cut() -> None:
    documents = drawn([12, 3])
    (loss, gradients), (truncated, ended) = whole(documents), step(documents, through=False)
    torch.testing.assert_close(truncated, loss, rtol=1e-12, atol=0.0)
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(gradients, ended, strict=True))


def test_without_states_the_values_differ() -> None:
    documents = drawn([12, 3])
    assert (step(documents, through=True, wrong=True)[0] - whole(documents)[0]).abs() > 1e-3


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: carried_states(None, (Piece(0, 4, 6),)), ArgumentError, "sequence 0 goes on from token 4"),
        (lambda: carried_states(torch.ones(1, 2), (Piece(0, 0, 2), Piece(1, 3, 4))), LayoutError, "only the first can"),
        (lambda: carried_states(torch.ones(1, 2), [(0, 0, 2)]), LayoutError, "pack holds a tuple"),  # type: ignore[list-item]
        (lambda: carried_states(3, (Piece(0, 0, 2),)), ArgumentError, "final_states is an int"),  # type: ignore[arg-type]
        (lambda: carried_states(torch.ones(0, 2), (Piece(0, 1, 2),)), ArgumentError, "final_states has 0 sequences"),
    ],
)
def test_wrong_calls(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


def test_the_first_pack_starts_from_nothing() -> None:
    assert carried_states(None, (Piece(0, 0, 2),)) is None
