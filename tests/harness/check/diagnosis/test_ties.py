"""A report names ties where a kernel differs from the reference only for equal elements, and nowhere else."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import packproof
from packproof.harness.check.check import run_check
from packproof.harness.check.diagnosis.ties import moved_apart
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import CellFinished, Verdict
from packproof.refs import join_sequences, split_sequences
from tests.sweeps import sweep


def best(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """x: (t, e). Returns (t, 1): the sum of the two largest."""
    rows = [p.topk(2).values.sum(-1, keepdim=True) for p in split_sequences(x, cu_seqlens)]
    return join_sequences(rows, x[:, :1])


def first_choice(x: Tensor, w: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """x, w: (t, e). Returns (t, 1): w where x is largest, at the first such place."""
    rows = [b.gather(-1, _argmax(a)) for a, b in zip(*(split_sequences(y, cu_seqlens) for y in (x, w)), strict=True)]
    return join_sequences(rows, x[:, :1])


BEST = packproof.Op(name="best", reference=best, inputs={"x": "t e"}, outputs={"y": "t 1"}, sizes=({"e": 24},))
CHOICE = packproof.Op(
    name="choice",
    reference=first_choice,
    inputs={"x": "t e", "w": "t e"},
    outputs={"y": "t 1"},
    sizes=({"e": 4},),
    draws={"w": "unit"},
    constants=frozenset({"x"}),
)


def _argmax(x: Tensor) -> Tensor:
    return (x == x.amax(-1, keepdim=True)).int().argmax(-1, keepdim=True)  # the first one, on every device


def _inside(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    return (torch.arange(len(x)) < cu_seqlens[-1])[:, None]


def other_best(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Correct. Of equal elements it takes others than the reference, as topk on a GPU does."""
    return torch.where(_inside(x, cu_seqlens), x.flip(-1).topk(2).values.sum(-1, keepdim=True), 0)


def last_choice(x: Tensor, w: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return torch.where(_inside(x, cu_seqlens), w.gather(-1, x.shape[1] - 1 - _argmax(x.flip(-1))), 0)


def smallest_two(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return -other_best(-x, cu_seqlens=cu_seqlens)


def too_large(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return other_best(x, cu_seqlens=cu_seqlens) * 1.02


def leaking(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return other_best(torch.maximum(x, x.roll(1, 0)), cu_seqlens=cu_seqlens)


def clamped(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return other_best(x.clamp(max=2.5), cu_seqlens=cu_seqlens)


def wrong_in_long_packs(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return too_large(x, cu_seqlens=cu_seqlens) if len(x) > 4 else best(x, cu_seqlens=cu_seqlens)


def verdict_of(kernel: Callable[..., Tensor], op: packproof.Op, dtype: str = "bfloat16", **settings: Any) -> Verdict:
    fields: Mapping[str, Any] = {"profile": "quick", "questions": False, "properties": ("reference",), **settings}
    events = run_check(CheckRequest(kernel, op=op, dtypes=(dtype,), **fields))
    [verdict] = [event.verdict for event in events if isinstance(event, CellFinished)]
    return verdict


@sweep(
    "kernel, op, draws",
    sample=[(last_choice, CHOICE, {"w": "unit", "x": "distinct"})],
    rest=[(other_best, BEST, {"x": "distinct"})],
)
def test_a_choice_among_equal_elements_is_the_cause_and_its_declaration_works(
    kernel: Callable[..., Tensor], op: packproof.Op, draws: dict[str, str]
) -> None:
    failure = verdict_of(kernel, op).failure
    assert failure is not None
    text = "\n".join(failure.lines)
    assert "a tie: elements of x are equal; once they differ, the kernel equals the reference" in text
    assert text.endswith(f"add to its packproof.Op\n    draws={draws}")
    assert "own computation" not in text
    assert ("two correct gradients" in text) == (op is BEST)
    verdict = verdict_of(kernel, replace(op, draws=draws))
    assert (verdict.status, verdict.judged) == ("passed", verdict.examples)


@sweep("kernel", [too_large], [wrong_in_long_packs, smallest_two, leaking, clamped])
def test_a_fault_that_ties_have_nothing_to_do_with_is_not_put_down_to_them(kernel: Callable[..., Tensor]) -> None:
    failure = verdict_of(kernel, BEST).failure
    assert failure is not None
    assert "a tie:" not in "\n".join(failure.lines)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_equal_elements_are_moved_apart_by_the_fewest_steps(dtype: torch.dtype) -> None:
    step = torch.finfo(dtype).eps
    x = torch.tensor([[1, -1, 1, 0.0], [-0.0, -1, 1 + step, 3]], dtype=dtype)
    y = moved_apart(x)
    assert y.dtype == dtype
    assert len(y.unique()) == y.numel()
    assert y[0].tolist() == [1, -1, 1 + step, 0]
    assert y[1].tolist() == [torch.finfo(dtype).smallest_normal * step, -1 + step / 2, 1 + 2 * step, 3]
