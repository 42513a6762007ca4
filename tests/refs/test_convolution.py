"""The causal convolution against its formula, and the states that let a sequence be cut and continued."""

import math

import pytest
import torch
from torch import Tensor

from packproof.refs import ArgumentError, causal_conv1d, causal_conv1d_step


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def offsets(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def by_formula(x: Tensor, weight: Tensor, bias: Tensor | None, past: Tensor | None, silu: bool) -> Tensor:
    """One sequence, number by number, in Python floats; past is (d, w-1)."""
    t, d = x.shape
    w = weight.shape[1]

    def at(i: int, c: int) -> float:
        if i >= 0:
            return x[i, c].item()
        return 0.0 if past is None else past[c, w - 1 + i].item()

    y = torch.empty_like(x)
    for i in range(t):
        for c in range(d):
            pre = sum(weight[c, j].item() * at(i - (w - 1) + j, c) for j in range(w))
            pre += 0.0 if bias is None else bias[c].item()
            y[i, c] = pre / (1 + math.exp(-pre)) if silu else pre
    return y


@pytest.mark.parametrize("w", [1, 2, 4, 7])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_values_are_the_formula(w: int, with_bias: bool, with_states: bool, activation: str | None) -> None:
    lengths = [5, 0, 1, 3]
    x, weight = randn(9, 2), randn(2, w, seed=1)
    bias = randn(2, seed=2) if with_bias else None
    states = randn(4, 2, w - 1, seed=3) if with_states else None
    y = causal_conv1d(x, weight, bias, cu_seqlens=offsets(0, 5, 5, 6, 9), initial_states=states, activation=activation)
    want = [
        by_formula(part, weight, bias, None if states is None else states[j], activation == "silu")
        for j, part in enumerate(x.split(lengths))
    ]
    torch.testing.assert_close(y, torch.cat(want), rtol=1e-13, atol=1e-13)


def test_final_states_are_the_last_inputs() -> None:
    x, states = randn(7, 2), randn(3, 2, 3, seed=1)
    _, final = causal_conv1d(
        x, randn(2, 4), cu_seqlens=offsets(0, 2, 2, 7), initial_states=states, return_final_states=True
    )
    assert torch.equal(final[0], torch.cat([states[0, :, 2:], x[:2].T], dim=1))  # short: part of the old state
    assert torch.equal(final[1], states[1])  # empty: all of it
    assert torch.equal(final[2], x[4:7].T)


def test_final_states_without_initial_ones_start_from_zeros() -> None:
    x = randn(1, 2)
    _, final = causal_conv1d(x, randn(2, 3), cu_seqlens=offsets(0, 1, 1), return_final_states=True)
    assert torch.equal(final[0], torch.stack([torch.zeros(2, dtype=torch.float64), x[0]], dim=1))
    assert not final[1].any()


@pytest.mark.parametrize("cut", range(7))
@pytest.mark.parametrize("w", [1, 4])
def test_a_cut_sequence_continues(cut: int, w: int) -> None:
    """Values and gradients have the bits of one run, also those that reach the first piece through the state."""
    x, weight, bias, state = (
        v.requires_grad_() for v in (randn(6, 2), randn(2, w), randn(2), randn(1, 2, w - 1, seed=4))
    )
    options = {"activation": "silu", "return_final_states": True}
    y, final = causal_conv1d(x, weight, bias, cu_seqlens=offsets(0, 6), initial_states=state, **options)
    y1, carried = causal_conv1d(x[:cut], weight, bias, cu_seqlens=offsets(0, cut), initial_states=state, **options)
    y2, last = causal_conv1d(x[cut:], weight, bias, cu_seqlens=offsets(0, 6 - cut), initial_states=carried, **options)
    assert torch.equal(torch.cat([y1, y2]), y)
    assert torch.equal(last, final)
    dy, dfinal = randn(6, 2, seed=5), randn(1, 2, w - 1, seed=6)
    whole = torch.autograd.grad((y, final), (x, state, weight, bias), (dy, dfinal))
    pieces = torch.autograd.grad((y1, y2, last), (x, state, weight, bias), (dy[:cut], dy[cut:], dfinal))
    for a, b in zip(whole, pieces, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def test_the_step_is_the_convolution_and_takes_a_batch() -> None:
    x, weight, bias = randn(3, 5, 2), randn(2, 4), randn(2)
    state, ys = torch.zeros(3, 2, 3, dtype=torch.float64), []
    for token in x.unbind(1):
        state, y = causal_conv1d_step(state, token, weight, bias, "silu")
        ys.append(y)
    packed, final = causal_conv1d(
        x.flatten(0, 1), weight, bias, cu_seqlens=offsets(0, 5, 10, 15), activation="silu", return_final_states=True
    )
    torch.testing.assert_close(torch.stack(ys, 1).flatten(0, 1), packed, rtol=1e-14, atol=1e-14)
    assert torch.equal(state, final)


def test_step_gradient_is_the_complex_step_derivative() -> None:
    h = 1e-100
    state, x, weight, bias = (randn(*shape, seed=i) for i, shape in enumerate([(2, 3), (2,), (2, 4), (2,)]))
    leaves = [v.clone().requires_grad_() for v in (state, x, weight, bias)]
    found = torch.autograd.grad(causal_conv1d_step(*leaves, "silu")[1].sum(), leaves)
    for i, gradient in enumerate(found):
        for element in range(gradient.numel()):
            moved = [v.to(torch.complex128) for v in (state, x, weight, bias)]
            moved[i].view(-1)[element] += 1j * h
            pre = causal_conv1d_step(*moved)[1]
            slope = (pre / (1 + torch.exp(-pre))).sum().imag / h
            torch.testing.assert_close(gradient.flatten()[element], slope, rtol=1e-13, atol=1e-14)


MESSAGES = {
    "bias": (
        {"bias": torch.zeros(3)},
        "causal_conv1d: bias has 3 channels (axis d) but x has 2\n"
        "    x                float32 (6, 2)\n"
        "    weight           float32 (2, 4)\n"
        "    bias             float32 (3,)\n"
        "    cu_seqlens       int32 (2,)",
    ),
    "no taps": (
        {"weight": torch.zeros(2, 0)},
        "causal_conv1d: weight has 0 taps (axis w) but at least 1 was expected\n"
        "    x                float32 (6, 2)\n"
        "    weight           float32 (2, 0)\n"
        "    cu_seqlens       int32 (2,)",
    ),
    "state of another width": (
        {"initial_states": torch.zeros(1, 2, 4)},
        "causal_conv1d: initial_states has 4 along axis w-1 but weight has w = 4; 3 was expected\n"
        "    x                float32 (6, 2)\n"
        "    weight           float32 (2, 4)\n"
        "    initial_states   float32 (1, 2, 4)\n"
        "    cu_seqlens       int32 (2,)",
    ),
    "states of other sequences": (
        {"initial_states": torch.zeros(2, 2, 3)},
        "causal_conv1d: initial_states has 2 sequences (axis s) but cu_seqlens has 1\n"
        "    x                float32 (6, 2)\n"
        "    weight           float32 (2, 4)\n"
        "    initial_states   float32 (2, 2, 3)\n"
        "    cu_seqlens       int32 (2,)",
    ),
    "activation": ({"activation": "relu"}, "causal_conv1d: activation is 'relu' but None or 'silu' was expected"),
}


@pytest.mark.parametrize(("wrong", "text"), MESSAGES.values(), ids=MESSAGES.keys())
def test_messages(wrong: dict[str, object], text: str) -> None:
    call = {"x": torch.zeros(6, 2), "weight": torch.zeros(2, 4), "cu_seqlens": offsets(0, 6)} | wrong
    with pytest.raises(ArgumentError) as caught:
        causal_conv1d(**call)
    assert str(caught.value) == text


def test_step_messages() -> None:
    with pytest.raises(ArgumentError) as caught:
        causal_conv1d_step(torch.zeros(2, 4), torch.zeros(2), torch.zeros(2, 4))
    assert str(caught.value) == (
        "causal_conv1d_step: state (2, 4), x (2,), weight (2, 4) came "
        "but state (d, w-1), x (d,), weight (d, w) was expected"
    )
    with pytest.raises(ArgumentError, match="causal_conv1d_step: activation is 'gelu' but None or 'silu' was expected"):
        causal_conv1d_step(torch.zeros(2, 3), torch.zeros(2), torch.zeros(2, 4), None, "gelu")
