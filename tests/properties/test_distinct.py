"""`draws={"x": "distinct"}`: a maximum, or a choice of the largest, is unique in every sample."""

import pytest
import torch

from packproof.properties.cases.values import distinct_values


@pytest.mark.parametrize("size", [(1, 4), (6, 4), (33, 2, 8), (3840,), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_no_two_elements_of_a_small_tensor_are_equal(size: tuple[int, ...], dtype: torch.dtype) -> None:
    x = distinct_values(size, torch.Generator().manual_seed(0)).to(dtype)
    assert len(x.unique()) == x.numel()


def test_no_two_elements_of_a_column_are_equal() -> None:
    x = distinct_values((1000, 5), torch.Generator().manual_seed(0))
    assert all(len(column.unique()) == 1000 for column in x.T)
