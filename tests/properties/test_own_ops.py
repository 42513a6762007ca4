"""A user's ops have an error bound without declaring one: correct kernels pass by it, incorrect ones are detected."""

from dataclasses import replace
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import torch

import packproof
from packproof.base.errors import UsageError
from packproof.harness.check.targets.reference_trial import try_reference
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.bounds.running_error import run_with_error_bounds
from packproof.properties.calling.call import VacuousBound
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, judge_case
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.invariance import REFERENCE
from packproof.refs import join_sequences, over_time, split_sequences
from tests.properties.own_ops import KERNELS, SOFTMAX
from tests.sweeps import sweep

LAWS = [law for law in PROPERTIES.values() if law.name not in ("causality", "carry")]


def first_violation(op: packproof.Op, kernel: object, dtypes: tuple[str, ...]) -> Any:
    for dtype in dtypes:
        space = Space(op, dtype, Promises())
        subject = KernelUnderTest(op, InProcess(kernel), Promises())  # type: ignore[arg-type]
        for law in LAWS:
            for case in law.suited(space, list(golden_cases(space))):
                violation, stopped = judge_case(subject, law, case)
                assert stopped is None, stopped
                if violation is not None:
                    return violation
    return None


@sweep(
    "name, dtype",
    [*zip(KERNELS, cycle(("float32", "bfloat16")), strict=False)][:2],
    [*product(KERNELS, ("float32", "bfloat16"))],
)
def test_a_correct_kernel_passes(name: str, dtype: str) -> None:
    """In both dtypes, and through `packproof check`: test_correct_kernels.py, which `make proof` runs."""
    op, correct, _ = KERNELS[name]
    try_reference(op)
    assert first_violation(op, correct, (dtype,)) is None


@pytest.mark.parametrize(("name", "which"), [(name, k) for name in KERNELS for k in (0, 1)])
def test_an_incorrect_kernel_is_detected(name: str, which: int) -> None:
    op, _, wrong = KERNELS[name]
    assert first_violation(op, wrong[which], ("float32",)) is not None


def delta_rule(k: torch.Tensor, v: torch.Tensor, *, cu_seqlens: torch.Tensor) -> torch.Tensor:
    """S = S (I - k kᵀ) + v kᵀ with |k| = 1: stable, but not in absolute values."""

    def step(S: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k = k / (k.square().sum() + 1e-6).sqrt()
        S = S + torch.outer(v - S @ k, k)
        return S, S @ k

    pairs = zip(split_sequences(k, cu_seqlens), split_sequences(v, cu_seqlens), strict=True)
    return join_sequences([over_time(step, k.new_zeros(4, 4), *pair)[0] for pair in pairs], v)


DELTA = packproof.Op("delta_rule", delta_rule, {"k": "t d", "v": "t d"}, {"y": "t d"}, sizes=({"d": 4},))


def test_a_vacuous_bound_is_not_a_pass() -> None:
    space = Space(DELTA, "float32", Promises())
    subject = KernelUnderTest(DELTA, InProcess(delta_rule), Promises())
    by_length = {max(c.lengths): c for c in golden_cases(space)}
    assert judge_case(subject, REFERENCE, by_length[1]) == (None, None)
    violation, stopped = judge_case(subject, REFERENCE, by_length[70])
    assert violation is None
    assert isinstance(stopped, VacuousBound)
    assert "delta_rule's reference is so large for" in str(stopped)


def delta_rule_absolute(k: torch.Tensor, v: torch.Tensor, *, cu_seqlens: torch.Tensor) -> torch.Tensor:
    """Its sums of absolute terms, which double with each token."""

    def step(S: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k = k / (k.square().sum() + 1e-6).sqrt()
        S = S + torch.outer(v + S @ k, k)
        return S, S @ k

    k, v = packproof.magnitude(k), packproof.magnitude(v)
    pairs = zip(split_sequences(k, cu_seqlens), split_sequences(v, cu_seqlens), strict=True)
    return join_sequences([over_time(step, k.new_zeros(4, 4), *pair)[0] for pair in pairs], v)


def test_a_vacuous_bound_that_was_written_by_hand_is_not_a_pass() -> None:
    op = replace(DELTA, absolute=delta_rule_absolute)
    subject = KernelUnderTest(op, InProcess(delta_rule), Promises())
    by_length = {max(c.lengths): c for c in golden_cases(Space(op, "float32", Promises()))}
    violation, stopped = judge_case(subject, REFERENCE, by_length[70])
    assert violation is None
    assert isinstance(stopped, VacuousBound)
    assert "the error bound that delta_rule declares is so large for y" in str(stopped)


def test_a_bound_follows_the_size_of_what_cancels() -> None:
    """(x + 1e6) - 1e6: the error is that of 1e6, not of x."""
    x = torch.ones(3, dtype=torch.float64)
    found, errors = run_with_error_bounds(lambda: {"plain": x * 1, "cancelled": (x + 1e6) - 1e6})
    assert torch.equal(found["plain"], found["cancelled"])
    assert errors["plain"].max() <= 2
    assert errors["cancelled"].min() >= 1e6


def test_an_operator_without_a_rule_is_named() -> None:
    a = torch.eye(3, dtype=torch.float64)
    with pytest.raises(UsageError, match=r"no rule is known for torch's aten.\w*linalg\w*.* declare `absolute`"):
        run_with_error_bounds(lambda: {"y": torch.linalg.solve(a, a)})


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (lambda x, *, cu_seqlens: x[cu_seqlens[0]] * x, "at a pack of zero sequences .* raises IndexError"),
        (lambda x, *, cu_seqlens: (x, x), r"returns 2 outputs, expected \(y\)"),
        (lambda x, *, cu_seqlens: x.sum(0), r"returns y of shape \(3,\), expected \(0, 3\) \(t d\)"),
        (lambda x, *, cu_seqlens: x.float(), "returns y as float32, expected float64"),
        (lambda x, *, cu_seqlens: x.detach(), "returns y detached: no gradient reaches any input"),
        (lambda x, *, cu_seqlens: x / 0, "returns NaN or Inf in y"),
        (lambda x, *, cu_seqlens: None, "returns a NoneType for y, expected a tensor"),
        (
            lambda x, *, cu_seqlens: over_time(lambda h: (h, h), x[:1].sum(0), x, x)[0],
            r"step takes \(h\) but is called with the state and 2 rows.* \(test_own_ops.py:\d+\)",
        ),
    ],
)
def test_what_a_reference_cannot_do_is_reported_before_a_kernel_is_judged(reference: Any, words: str) -> None:
    op = packproof.Op("mine", reference, {"x": "t d"}, {"y": "t d"}, sizes=({"d": 3},))
    with pytest.raises(UsageError, match=f"mine: its reference, .*{words}"):
        try_reference(op)


def test_an_op_inside_adapt_is_enough(working_folder: Path) -> None:
    from packproof.cli import main  # noqa: PLC0415
    from packproof.harness.check.replay import replay  # noqa: PLC0415

    (working_folder / "mine.py").write_text(
        "from packproof.adapters import adapt\n"
        "from tests.properties import own_ops\n"
        "right = adapt(own_ops.softmax, op=own_ops.SOFTMAX)\n"
        "wrong = adapt(own_ops.softmax_of_the_pack, op=own_ops.SOFTMAX)\n"
    )
    request = ["--dtype", "fp32", "--property", "packing", "--profile", "quick", "--device", "cpu"]
    assert main.run(["check", "mine.py:right", *request]) == 0
    assert main.run(["check", "mine.py:wrong", *request]) == 1
    [file] = (working_folder / ".packproof").glob("segment_softmax-packing-*.json")
    assert replay(file).status == "failing"
    assert packproof.diff("mine.py:wrong", case=file).divergences
    assert SOFTMAX.absolute is None
