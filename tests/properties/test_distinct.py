"""`draws={"x": "distinct"}`: a maximum, or a choice of the largest, is unique in every sample."""

import pytest
import torch

from packproof.properties.cases.values import distinct_values


@pytest.mark.parametrize("size", [(1, 4), (6, 4), (33, 2, 8), (3840,), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_no_two_elements_of_a_small_tensor_are_equal(size: tuple[int, ...], dtype: torch.dtype) -> None:
    x = distinct_values(size, torch.Generator().manual_seed(0)).to(dtype)
    assert len(x.unique()) == x.numel()


@pytest.mark.parametrize("size", [(1000, 5), (3840, 2), (30, 8, 64), (4, 3840), (5000,)])
def test_no_two_elements_of_a_row_or_a_column_of_a_larger_tensor_are_equal(size: tuple[int, ...]) -> None:
    x = distinct_values(size, torch.Generator().manual_seed(0)).reshape(size[0], -1)
    lines = [*x[:, :3840], *x[:3840].T]
    assert all(len(line.unique()) == len(line) for line in lines)


def test_no_two_rows_of_a_huge_tensor_are_equal_nor_two_elements_along_its_last_axis() -> None:
    x = distinct_values((8000, 5), torch.Generator().manual_seed(0))
    assert len(x.unique(dim=0)) == 8000
    assert all(len(row.unique()) == 5 for row in x)
    y = distinct_values((2, 64, 128), torch.Generator().manual_seed(0))
    assert all(len(head.unique()) == 128 for token in y for head in token)
