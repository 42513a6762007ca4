"""The examples in the docstrings of kernels hold, and every kernel has one."""

import pytest

from packproof import kernels
from tests.examples_of import public, without_one, wrong_ones

NAMES = public(kernels)


@pytest.mark.parametrize("name", NAMES)
def test_examples_hold(name: str) -> None:
    assert without_one(name, NAMES[name]) == []
    assert list(wrong_ones(name, NAMES[name])) == []
