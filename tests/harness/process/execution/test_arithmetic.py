"""Which operators of torch compute."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from packproof.base.light_torch import DispatchMode
from packproof.harness.process.execution.provenance.arithmetic import computes

X, N = torch.ones(4, 3), torch.arange(4)


class _Computing(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if computes(op, args, kwargs or {}):
            self.names.append(op.overloadpacket.__name__)
        return op(*args, **(kwargs or {}))


def computing(run: Callable[[], Any]) -> list[str]:
    with _Computing() as mode:
        run()
    return mode.names


@pytest.mark.parametrize(
    "run",
    [
        lambda: torch.empty(3).zero_(),
        lambda: X.t().reshape(2, 6).contiguous()[1:],
        lambda: X.to(torch.bfloat16).float(),
        lambda: torch.cat([X, X.flip(0)]),
        lambda: X[N],
        lambda: torch.where(N[:, None] > 1, X, 0.0),
        lambda: torch.nn.functional.pad(X, (0, 1)),
        lambda: X.clone().index_put_((N,), X),
        lambda: int((N.cumsum(0) * 2 // 3).sum()),
        lambda: X[:0] * 2,
        lambda: float(X[0, 0]),
        lambda: torch.empty(4, 3).scatter_(0, N[:, None].expand(4, 3), X),
    ],
)
def test_what_moves_values_or_counts_does_not_compute(run: Callable[[], Any]) -> None:
    assert computing(run) == []


@pytest.mark.filterwarnings("ignore:The reduce argument")
@pytest.mark.parametrize(
    ("run", "name"),
    [
        (lambda: X + X, "add"),
        (lambda: X @ X.t(), "mm"),
        (lambda: X.sum(0), "sum"),
        (lambda: X > 0, "gt"),
        (lambda: N[:3] * 0.5 * X, "mul"),
        (lambda: torch._foreach_add([X], [X]), "_foreach_add"),
        (lambda: X.clone().index_put_((N,), X, accumulate=True), "index_put_"),
        (lambda: torch.zeros(4, 3).scatter_(0, N[:, None].expand(4, 3), X, reduce="add"), "scatter_"),
    ],
)
def test_what_computes_with_values_is_seen(run: Callable[[], Any], name: str) -> None:
    assert name in computing(run)
