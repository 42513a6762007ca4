"""A whole block trains on a pack as on its sequences one by one; a leak in one of its ops does not pass."""

from collections.abc import Callable
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import kernels, refs
from packproof.layers import Mamba2Block, MambaBlock
from tests.integration.small import LENGTHS, OPS, WIDTH, seeded, small
from tests.integration.training import Task, excess
from tests.sweeps import sweep

DTYPES = ("float32", "bfloat16")
NAMES = ("causal_conv1d", "selective_scan", "ssd")


def with_op(name: str, op: Callable[..., Tensor]) -> SimpleNamespace:
    """The references, except for one op."""
    return SimpleNamespace(**{n: getattr(refs, n) for n in NAMES} | {name: op})


def leaking(name: str) -> Callable[..., Tensor]:
    """The op over the whole pack as if it were one sequence."""

    def op(x: Tensor, *rest: Any, cu_seqlens: Tensor, **options: Any) -> Tensor:
        whole: Tensor = getattr(refs, name)(x, *rest, cu_seqlens=torch.tensor([0, len(x)]), **options)
        return whole

    return op


def leaking_backward(name: str) -> Callable[..., Tensor]:
    """The correct outputs with the gradients of the leaking op."""

    def op(*inputs: Any, **options: Any) -> Tensor:
        correct, leaked = getattr(refs, name)(*inputs, **options), leaking(name)(*inputs, **options)
        return correct.detach() + leaked - leaked.detach()

    return op


def task(dtype: str) -> Task:
    return Task.of(LENGTHS, WIDTH, getattr(torch, dtype))


@sweep("block, dtype", sample=[*zip(OPS, DTYPES, strict=True)], rest=[*product(OPS, DTYPES)])
def test_references_train_alike(block: str, dtype: str) -> None:
    assert excess(small(block, refs), task(dtype)) <= 1


IN_BLOCKS = [(block, op) for block in OPS for op in ("causal_conv1d", OPS[block])]
LEAKS = [(*place, dtype) for place in IN_BLOCKS for dtype in DTYPES]


@sweep("block, op, dtype", sample=[LEAKS[6]], rest=LEAKS)
def test_an_op_that_leaks_is_detected(block: str, op: str, dtype: str) -> None:
    assert excess(small(block, with_op(op, leaking(op))), task(dtype)) > 4


@sweep("block, op", sample=IN_BLOCKS[1:2], rest=IN_BLOCKS)
def test_an_op_that_leaks_in_its_gradients_only_is_detected(block: str, op: str) -> None:
    assert excess(small(block, with_op(op, leaking_backward(op))), task("float32")) > 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", OPS)
def test_kernels_train_alike_at_the_size_of_a_model(block: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # else products round their partial sums, and the budget covers another order only
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False)
    form, rate = {
        "mamba": (partial(MambaBlock, 256, d_state=16, dt_rank=16, ops=kernels), 1.0),
        "mamba2": (partial(Mamba2Block, 256, d_state=128, headdim=64, ops=kernels), 0.1),
    }[block]
    lengths = (1, 0, 63, 64, 65, 1025, 17, 1, 300, 0, 2)
    task = Task.of(lengths, 256, getattr(torch, dtype), "cuda")
    assert excess(seeded(form, "cuda"), task, rate) <= 1
