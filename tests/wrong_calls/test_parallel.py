"""Wrong calls of what cuts packs over ranks: layouts, groups and tokens that do not fit."""

from typing import Any

import pytest
import torch

from packproof import layers, parallel, refs
from tests.wrong_calls.refused import Wrong, assert_refused

X = torch.ones(2, 1, 2)
TABLE_OF_ROPE = torch.ones(5, 1)


def shard(*says: str, cu_seqlens: Any = (0, 2, 5), **given: Any) -> Wrong:
    return Wrong(lambda: parallel.run_ranks(2, lambda group: parallel.Shard(cu_seqlens, group, **given)), says)


def on_rank(op: str, *args: Any, says: tuple[str, ...], **options: Any) -> Wrong:
    def program(group: Any) -> object:
        return getattr(parallel, op)(*args, shard=parallel.Shard([0, 2, 5], group, (1,)), **options)

    return Wrong(lambda: parallel.run_ranks(2, program), says)


def zigzag(op: str, *args: Any) -> Wrong:
    def program(group: Any) -> object:
        return getattr(parallel, op)(*args, shard=parallel.ZigZag([0, 2], group))

    return Wrong(lambda: parallel.run_ranks(1, program), (f"{op}: shard is a ZigZag, expected a Shard",))


def kernel(*says: str, **given: Any) -> Wrong:
    made = parallel.simulated(parallel.ContiguousShares("rope", lambda group, **call: call["x"]), refs.rope)
    call: dict[str, Any] = {"x": X, "cos": TABLE_OF_ROPE, "sin": TABLE_OF_ROPE, "cu_seqlens": torch.tensor([0, 2])}
    return Wrong(lambda: made(**call, **given), says)


TABLE = {
    "offsets not in order": shard("Shard: cu_seqlens is [0, 3, 2]", "from 0 on, in order", cu_seqlens=[0, 3, 2]),
    "offsets from one": shard("Shard: cu_seqlens is [1, 3]", cu_seqlens=torch.tensor([1, 3])),
    "no offsets": shard("Shard: cu_seqlens is []", cu_seqlens=[]),
    "a cut too many": shard("Shard: cuts are [1, 2], expected 1 positions in order, for 2 ranks and", cuts=[1, 2]),
    "a cut past the pack": shard("Shard: cuts are [6]", cuts=[6]),
    "an unknown argument": shard("Shard: cut is no argument; did you mean cuts?", cut=[1]),
    "no group": Wrong(lambda: parallel.Shard([0, 2], None), ("group is None", "a process group or a DeviceMesh")),  # type: ignore[arg-type]
    "no group for a block": Wrong(
        lambda: parallel.TensorParallelMamba2(layers.Mamba2Block(8, headdim=4, ops=refs), "world"),  # type: ignore[arg-type]
        ("TensorParallelMamba2: group is 'world'",),
    ),
    "too few tokens": on_rank(
        "rope", X, TABLE_OF_ROPE, TABLE_OF_ROPE, kernel=refs.rope,
        says=("rope: x has shape (2, 1, 2) but rank 1 of 2 holds 4 tokens of the pack, 1 to 5",),
    ),
    "too few tokens of a convolution": on_rank(
        "causal_conv1d", X[0], torch.ones(2, 2), kernel=refs.causal_conv1d, says=("causal_conv1d: x has shape (1, 2)",)
    ),
    "a zig-zag of too few cuts": Wrong(
        lambda: parallel.run_ranks(2, lambda group: parallel.ZigZag([0, 2, 5], group, (1,))),
        ("ZigZag: cuts are [1], expected 3 positions in order, for 2 ranks",),
    ),
    "a convolution of a zig-zag": zigzag("causal_conv1d", X[0], torch.ones(2, 2)),
    "a scan of a zig-zag": zigzag("selective_scan", X[0], X[0], torch.ones(2, 1), X[0], X[0]),
    "too few tokens of a zig-zag": Wrong(
        lambda: parallel.run_ranks(1, lambda group: parallel.attention(X, X, X, shard=parallel.ZigZag([0, 5], group))),
        ("attention: q has shape (2, 1, 2) but rank 0 of 1 holds 5 tokens of the pack, 0 to 2 and 2 to 5",),
    ),
    "a state from nowhere": on_rank(
        "rope", X, TABLE_OF_ROPE, TABLE_OF_ROPE, offsets=None, says=("rope: offsets is no argument",)
    ),
    "an unknown op": Wrong(
        lambda: parallel.ContiguousShares("conv", lambda: X), ("op: 'conv' is not known", "causal_conv1d")
    ),
    "cuts not in order": kernel("rope: cuts are [2, 1], expected token positions in order", cuts=(2, 1)),
    "no time": Wrong(lambda: parallel.Watch(0), ("Watch: seconds is 0, expected a time above 0",)),
    "no ranks": Wrong(lambda: parallel.run_ranks(0, lambda _: None), ("run_ranks: size is 0", "1 or more")),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_a_wrong_call_is_refused(name: str) -> None:
    assert_refused(TABLE[name])
