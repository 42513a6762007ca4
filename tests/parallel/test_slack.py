"""Rows past the tokens of a rank hold anything: outputs there are zero, and nothing of them reaches a gradient."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import parallel, refs

NAN = float("nan")

OPS: dict[str, tuple[Callable[..., Tensor], dict[str, tuple[int, ...]]]] = {
    "causal_conv1d": (
        lambda x, **rank: parallel.causal_conv1d(x, torch.ones(2, 3), kernel=refs.causal_conv1d, **rank),
        {"x": (2,)},
    ),
    "rope": (
        lambda x, **rank: parallel.rope(x, torch.ones(8, 1), torch.zeros(8, 1), kernel=refs.rope, **rank),
        {"x": (1, 2)},
    ),
    "attention": (partial(parallel.attention, causal=True, kernel=refs.attention), dict.fromkeys("qkv", (1, 2))),
    "ssd": (
        lambda x, dt, B, C, **rank: parallel.ssd(x, dt, -torch.ones(1), B, C, kernel=refs.ssd, **rank),
        {"x": (1, 2), "dt": (1,), "B": (1, 2), "C": (1, 2)},
    ),
    "selective_scan": (
        lambda u, delta, B, C, **rank: parallel.selective_scan(
            u, delta, -torch.ones(2, 2), B, C, kernel=refs.selective_scan, **rank
        ),
        {"u": (2,), "delta": (2,), "B": (2,), "C": (2,)},
    ),
}


@pytest.mark.parametrize(
    "cuts", [(2, 2), (5, 5), (2, 4)], ids=["a rank without tokens", "at a boundary", "tokens on every rank"]
)
@pytest.mark.parametrize("op", OPS)
def test_slack_that_is_nan_stays_where_it_is(op: str, cuts: tuple[int, ...]) -> None:
    function, shapes = OPS[op]
    inputs = {name: torch.rand(6, *shape) for name, shape in shapes.items()}

    def program(group: Any) -> tuple[int, Tensor, list[Tensor]]:
        shard = parallel.Shard(torch.tensor([0, 5, 6]), group, cuts=cuts)
        rank = {}
        for name, x in inputs.items():
            rows = x[shard.rows]
            rank[name] = torch.cat([rows, rows.new_full((2, *rows.shape[1:]), NAN)]).requires_grad_()
        y = function(**rank, shard=shard)
        dy = torch.ones_like(y)
        dy[shard.tokens :] = NAN
        gradients = torch.autograd.grad(y, list(rank.values()), dy, allow_unused=True, materialize_grads=True)
        return shard.tokens, y.detach(), list(gradients)

    for tokens, y, gradients in parallel.run_ranks(3, program):
        for x in (y, *gradients):
            assert torch.equal(x[tokens:], torch.zeros_like(x[tokens:]))
            assert x[:tokens].isfinite().all()
