"""A kernel may load floats that were never written, as long as it discards them."""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, disable-error-code="operator"

from collections.abc import Mapping

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.base.errors import UnwrittenReadError
from packproof.harness.process.execution.execute import InProcess
from packproof.interpreter import repair
from packproof.properties.calling import Call

repair.install()

_BLOCK = 16


@triton.jit
def _write_lower_triangle(x, scratch, n, B: tl.constexpr):
    row, column = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    values = tl.load(x + row, mask=row < n, other=0.0) + column * 0
    tl.store(scratch + row * B + column, values, mask=(row >= column) & (row < n))


@triton.jit
def _sum_of_part(scratch, y, n, USED: tl.constexpr, B: tl.constexpr):
    """The whole block is loaded, of which `USED` says what counts."""
    row, column = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    block = tl.load(scratch + row * B + column)
    if USED == "diagonal":
        block = tl.where((row == column) & (row < n), block, 0.0)
    elif USED == "maximum":  # it drops NaN
        block = tl.where(row == 0, tl.maximum(block, 0.0), 0.0)
    elif USED == "comparison":  # NaN is not above 0
        block = tl.where((row == 0) & (block > 0.0), 1.0, 0.0)
    tl.store(y + tl.arange(0, B), tl.sum(block, 1), mask=tl.arange(0, B) < n)


def _run(used: str, *, guard: bool) -> Mapping[str, Tensor]:
    def kernel(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        scratch, y = torch.empty(_BLOCK, _BLOCK), torch.empty_like(x)
        _write_lower_triangle[(1,)](x, scratch, len(x), B=_BLOCK)
        _sum_of_part[(1,)](scratch, y, len(x), USED=used, B=_BLOCK)
        return y

    x = torch.tensor([-1.0, 2.0, -3.0, 4.0, 5.0])
    return InProcess(kernel).run(Call({"x": x}, torch.tensor([0, 5]), {}, outputs=("y",), guard=guard)).outputs


@pytest.mark.parametrize("guard", [False, True])
def test_what_is_discarded_does_not_matter(guard: bool) -> None:
    assert _run("diagonal", guard=guard)["y"].tolist() == [-1.0, 2.0, -3.0, 4.0, 5.0]


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("used", ["all", "maximum", "comparison"])
def test_what_reaches_a_result_is_a_fault(used: str, guard: bool) -> None:
    with pytest.raises(UnwrittenReadError, match=r"^_sum_of_part: program \(0\) reads .+, which was never written$"):
        _run(used, guard=guard)
