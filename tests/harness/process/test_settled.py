"""What importing and running beside other processes costs less with changes nothing else."""

import inspect
import sys
from types import FunctionType

import pytest

from packproof.harness.process import settled
from packproof.harness.process.settled import fast_imports, with_large_frame


def test_while_importing_sources_and_modules_are_found_and_python_is_as_before_afterwards() -> None:
    before = inspect.getmodule
    with fast_imports():
        lines, first = inspect.getsourcelines(fast_imports)
        assert inspect.getmodule(fast_imports) is settled
    assert (lines, first) == inspect.getsourcelines(fast_imports)
    assert inspect.getmodule is before
    with pytest.raises(ImportError), fast_imports():
        raise ImportError
    assert inspect.getmodule is before


def test_a_function_in_one_chunk_takes_and_returns_what_it_did() -> None:
    def depth(n: int, step: int) -> int:
        return n and 1 + depth(n - step, step)

    @with_large_frame
    def wide(n: int, *, step: int = 1) -> int:
        return depth(n, step)

    assert wide(6, step=2) == 3
    with pytest.raises(RecursionError):
        wide(sys.getrecursionlimit())
    assert isinstance(wide, FunctionType)
    assert wide.__code__.co_stacksize * 8 > 2**19
