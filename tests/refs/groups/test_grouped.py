"""grouped_mm a second way, and what an empty group and slack have."""

import pytest
import torch
from torch import Tensor
from torch.autograd import grad, gradcheck
from torch.nn.functional import one_hot

from packproof.refs import ArgumentError, PackLayout, grouped_mm, seq_idx_from_cu_seqlens


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def by_membership(x: Tensor, weight: Tensor, bias: Tensor, cu_seqlens: Tensor) -> Tensor:
    """All matrices at once: row t has 1 for its own group, and nothing in slack."""
    member = one_hot(seq_idx_from_cu_seqlens(cu_seqlens, len(x)).long() + 1, len(weight) + 1)[:, 1:].to(x)
    return torch.einsum("ts,td,sdf->tf", member, x, weight) + member @ bias


@pytest.mark.parametrize("lengths", [(0, 0), (1,), (3, 0, 1, 7, 0), (1,) * 9, (64, 0, 44)])
def test_each_row_is_multiplied_by_the_matrix_of_its_group(lengths: tuple[int, ...]) -> None:
    layout = PackLayout(lengths, slack=2)
    x, weight, bias = drawn(layout.total_tokens, 5), drawn(len(lengths), 5, 3), drawn(len(lengths), 3)
    y = grouped_mm(x, weight, bias, cu_seqlens=layout.cu_seqlens())
    expected = by_membership(x, weight, bias, layout.cu_seqlens())
    dy = torch.randn_like(y)
    for actual, other in zip(
        (y, *grad(y, (x, weight, bias), dy)), (expected, *grad(expected, (x, weight, bias), dy)), strict=True
    ):
        torch.testing.assert_close(actual, other, rtol=1e-12, atol=1e-12)
    empty = [j for j, n in enumerate(lengths) if not n]
    assert not grad(grouped_mm(x, weight, cu_seqlens=layout.cu_seqlens()), weight, dy)[0][empty].any()
    assert not y[layout.n_tokens :].any()


def test_without_groups_all_is_slack() -> None:
    x, weight = drawn(2, 5), drawn(0, 5, 3)
    y = grouped_mm(x, weight, cu_seqlens=torch.tensor([0]))
    assert y.shape == (2, 3)
    assert not y.any()
    assert not grad(y.sum(), x)[0].any()


def test_its_gradients_are_those_of_differences() -> None:
    cu_seqlens = torch.tensor([0, 2, 2, 3])
    inputs = drawn(4, 2), drawn(3, 2, 3), drawn(3, 3)
    assert gradcheck(lambda *tensors: grouped_mm(*tensors, cu_seqlens=cu_seqlens), inputs)


def test_a_matrix_is_missing() -> None:
    with pytest.raises(ArgumentError, match="weight has 2 sequences"):
        grouped_mm(torch.ones(3, 2), torch.ones(2, 2, 1), cu_seqlens=torch.tensor([0, 1, 2, 3]))
