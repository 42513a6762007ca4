"""Dispatch and combine token by token; what a capacity drops; permutations and their inverses."""

import pytest
import torch
from torch import Tensor
from torch.autograd import grad, gradcheck

from packproof.refs import ArgumentError, PackLayout, dispatch_combine, mixture_of_experts, moe_permute, moe_unpermute

LAYOUT = PackLayout((3, 0, 1, 9), slack=2)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def inputs(n_experts: int) -> list[Tensor]:
    return [drawn(LAYOUT.total_tokens, 3), drawn(LAYOUT.total_tokens, n_experts), drawn(n_experts, 3)]


def token_by_token(
    x: Tensor, logits: Tensor, gain: Tensor, *, top: int, normalize: bool, capacity: int | None
) -> Tensor:
    rows = []
    for sequence in LAYOUT.slices:
        taken = [0] * len(gain)
        for t in range(sequence.start, sequence.stop):
            p, chosen = logits[t].exp().div(logits[t].exp().sum()).sort(descending=True)
            total, y = p[:top].sum() if normalize else 1.0, torch.zeros_like(x[t])
            for weight, i in zip(p, chosen[:top].tolist(), strict=False):
                if capacity is None or taken[i] < capacity:
                    y = y + weight / total * x[t] * gain[i]
                taken[i] += 1
            rows.append(y)
    return torch.cat([torch.stack(rows), x.new_zeros(LAYOUT.slack, x.shape[1])])


@pytest.mark.parametrize(("n_experts", "top"), [(1, 1), (4, 1), (4, 2), (6, 6)])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("capacity", [None, 0, 1, 3])
def test_each_token_goes_to_its_experts_and_back(
    n_experts: int, top: int, normalize: bool, capacity: int | None
) -> None:
    tensors, options = inputs(n_experts), {"top": top, "normalize": normalize, "capacity": capacity}
    y = dispatch_combine(*tensors, cu_seqlens=LAYOUT.cu_seqlens(), **options)
    expected = token_by_token(*tensors, top=top, normalize=normalize, capacity=capacity)
    dy = torch.randn_like(y)
    if capacity == 0:
        assert not y.any()
        return
    gradients = (grad(out, tensors, dy, materialize_grads=True) for out in (y, expected))
    for actual, other in zip((y, *next(gradients)), (expected, *next(gradients)), strict=True):
        torch.testing.assert_close(actual, other, rtol=1e-12, atol=1e-12)
    assert not y[LAYOUT.n_tokens :].any()


def test_rows_lie_by_expert_then_by_token() -> None:
    x, experts = torch.arange(5.0)[:, None], torch.tensor([[1, 0], [0, 2], [-1, 0], [1, 2], [0, 0]])
    cu_seqlens = torch.tensor([0, 2, 4])
    rows, pairs, offsets = moe_permute(x, experts, n_experts=4, cu_seqlens=cu_seqlens)
    assert rows.flatten().tolist() == [0, 1, 2, 0, 3, 1, 3]
    assert pairs.tolist() == [1, 2, 5, 0, 6, 3, 7]
    assert offsets.tolist() == [0, 3, 5, 7, 7]
    rows, pairs, offsets = moe_permute(x, experts, n_experts=4, cu_seqlens=cu_seqlens, capacity=1)
    assert rows.flatten().tolist() == [0, 2, 0, 3, 1, 3]
    assert offsets.tolist() == [0, 2, 4, 6, 6]


def test_unpermute_is_the_transpose_of_permute() -> None:
    """With weights of 1, combining is the gradient of dispatching."""
    x, experts = drawn(LAYOUT.total_tokens, 3), torch.randint(4, (LAYOUT.total_tokens, 2))
    rows, pairs, _ = moe_permute(x, experts, n_experts=4, cu_seqlens=LAYOUT.cu_seqlens(), capacity=2)
    dy = torch.randn_like(rows)
    combined = moe_unpermute(dy, pairs, torch.ones(experts.shape, dtype=torch.float64))
    assert torch.equal(grad(rows, x, dy)[0], combined)


def test_a_mixture_is_products_between_dispatch_and_combine() -> None:
    x, logits, _ = inputs(5)
    w_gate, w_up, w_down = drawn(5, 3, 4), drawn(5, 3, 4), drawn(5, 4, 3)
    y = mixture_of_experts(x, logits, w_gate, w_up, w_down, cu_seqlens=LAYOUT.cu_seqlens())
    weights, experts = logits.softmax(-1).topk(2)
    rows, pairs, offsets = moe_permute(x, experts, n_experts=5, cu_seqlens=LAYOUT.cu_seqlens())
    parts = []
    for i, part in enumerate(rows.split(offsets.diff().tolist())):
        parts.append((torch.nn.functional.silu(part @ w_gate[i]) * (part @ w_up[i])) @ w_down[i])
    torch.testing.assert_close(moe_unpermute(torch.cat(parts), pairs, weights), y, rtol=1e-12, atol=1e-12)


def test_its_gradients_are_those_of_differences() -> None:
    def call(*tensors: Tensor) -> Tensor:
        y: Tensor = dispatch_combine(*tensors, cu_seqlens=LAYOUT.cu_seqlens(), normalize=True, capacity=2)
        return y

    assert gradcheck(call, inputs(4))


def test_messages() -> None:
    x, cu_seqlens = torch.ones(2, 3), torch.tensor([0, 2])
    for experts, message in (
        (torch.ones(2, 1), r"experts is torch.float32 \(2, 1\) but int32 or int64 \(t, k\)"),
        (torch.ones(3, 1).int(), "experts has 3 rows but x has 2"),
        (torch.tensor([[4], [0]]), "experts has 0 to 4 but 0 to 3 was expected"),
    ):
        with pytest.raises(ArgumentError, match=f"moe_permute: {message}"):
            moe_permute(x, experts, n_experts=4, cu_seqlens=cu_seqlens)
    with pytest.raises(ArgumentError, match="moe_permute: capacity is -1; 0 or more was expected"):
        moe_permute(x, torch.zeros(2, 1).int(), n_experts=4, cu_seqlens=cu_seqlens, capacity=-1)
    with pytest.raises(ArgumentError, match=r"moe_unpermute: rows is \(2, 3\), pairs \(1,\) and weights \(2, 1\)"):
        moe_unpermute(x, torch.tensor([0]), torch.ones(2, 1))
    with pytest.raises(ArgumentError, match="moe_unpermute: pairs has 0 to 2 but 0 to 1 was expected"):
        moe_unpermute(x, torch.tensor([0, 2]), torch.ones(2, 1))
    with pytest.raises(ArgumentError, match=r"dispatch_combine: top is 3 but logits has 2 experts \(axis e\)"):
        dispatch_combine(x, torch.ones(2, 2), torch.ones(2, 3), cu_seqlens=cu_seqlens, top=3)
