"""mixture_of_experts a second way, and what an expert that no token chooses has."""

import pytest
import torch
from torch import Tensor
from torch.autograd import grad, gradcheck
from torch.nn.functional import silu

from packproof.refs import ArgumentError, PackLayout, mixture_of_experts

LAYOUT = PackLayout((3, 0, 1, 7), slack=2)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def inputs(n_experts: int) -> list[Tensor]:
    shapes = ((LAYOUT.total_tokens, 3), (LAYOUT.total_tokens, n_experts), (n_experts, 3, 4), (n_experts, 3, 4))
    return [drawn(*shape) for shape in (*shapes, (n_experts, 4, 3))]


def token_by_token(
    x: Tensor, logits: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, top: int, normalize: bool
) -> Tensor:
    rows = []
    for t in range(LAYOUT.n_tokens):
        weights, chosen = logits[t].exp().div(logits[t].exp().sum()).sort(descending=True)
        total = weights[:top].sum() if normalize else 1.0
        experts = [(silu(w_gate[i].T @ x[t]) * (w_up[i].T @ x[t])) @ w_down[i] for i in chosen[:top].tolist()]
        rows.append(sum(w / total * y for w, y in zip(weights, experts, strict=False)))
    return torch.cat([torch.stack(rows), x.new_zeros(LAYOUT.slack, x.shape[1])])


@pytest.mark.parametrize(("n_experts", "top"), [(1, 1), (4, 1), (4, 2), (6, 6)])
@pytest.mark.parametrize("normalize", [False, True])
def test_each_token_is_computed_by_its_experts(n_experts: int, top: int, normalize: bool) -> None:
    tensors = inputs(n_experts)
    y = mixture_of_experts(*tensors, cu_seqlens=LAYOUT.cu_seqlens(), top=top, normalize=normalize)
    expected = token_by_token(*tensors, top, normalize)
    dy = torch.randn_like(y)
    gradients = (grad(out, tensors, dy) for out in (y, expected))
    for actual, other in zip((y, *next(gradients)), (expected, *next(gradients)), strict=True):
        torch.testing.assert_close(actual, other, rtol=1e-12, atol=1e-12)
    assert not y[LAYOUT.n_tokens :].any()


def test_an_expert_that_no_token_chooses_has_no_gradient() -> None:
    tensors = inputs(3)
    with torch.no_grad():
        tensors[1][:, 2] = -9
    y = mixture_of_experts(*tensors, cu_seqlens=LAYOUT.cu_seqlens(), top=2)
    assert all(not g[2].any() for g in grad(y.sum(), tensors[2:]))


def test_its_gradients_are_those_of_differences() -> None:
    def call(*tensors: Tensor) -> Tensor:
        y: Tensor = mixture_of_experts(*tensors, cu_seqlens=LAYOUT.cu_seqlens())
        return y

    assert gradcheck(call, inputs(4))


def test_there_are_fewer_experts_than_a_token_takes() -> None:
    with pytest.raises(ArgumentError, match=r"top is 3 but logits has 2 experts \(axis e\)"):
        mixture_of_experts(*inputs(2), cu_seqlens=LAYOUT.cu_seqlens(), top=3)
