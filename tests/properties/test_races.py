"""The races property: what it says of answers that differ now and then. Without a GPU nothing runs beside a call."""

import pytest
from torch import Tensor

from packproof import refs
from packproof.base.law_names import LAWS, ON_REQUEST
from packproof.harness.check.request import CheckRequest
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.process.execution.perturbation import repetition
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.call_contract import PERTURBED_CALLS, RACES
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import CAUSAL_CONV1D
from tests.harness.process.execution.test_perturbation import NoLoad


@pytest.fixture(autouse=True)
def no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "Load", NoLoad)


class Sometimes:
    """A convolution of which each 19th call is off."""

    def __init__(self, factor: float) -> None:
        self._factor, self._calls = factor, 0

    def __call__(self, x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        self._calls += 1
        y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
        return y * self._factor if self._calls % 19 == 0 else y


def judge(function: object, promises: Promises) -> tuple[Violation | None, KernelUnderTest]:
    space = Space(CAUSAL_CONV1D, "float32", promises, frozenset({"x", "weight", "cu_seqlens"}), on_gpu=True)
    case = next(case for case in golden_cases(space) if case.n_tokens)
    kernel = KernelUnderTest(CAUSAL_CONV1D, InProcess(function), promises)  # type: ignore[arg-type]
    return first_violation(kernel, RACES, case.replace(lengths=(3, 1, 5))), kernel


def test_an_answer_that_differs_now_and_then_fails_and_is_counted() -> None:
    violation, kernel = judge(Sometimes(2.0), Promises(deterministic=True))
    assert violation is not None
    assert violation.note in {f"in {n} of {PERTURBED_CALLS} calls under perturbation" for n in (3, 6)}
    assert kernel.perturbed_calls["races"] == PERTURBED_CALLS


def test_other_bits_are_within_the_budget_unless_the_same_ones_are_promised() -> None:
    nearly = 1 + 2**-22
    assert judge(Sometimes(nearly), Promises(deterministic=True))[0] is not None
    assert judge(Sometimes(nearly), Promises(deterministic=False))[0] is None
    assert judge(Sometimes(2.0), Promises(deterministic=False))[0] is not None


def test_the_same_answer_each_time_passes() -> None:
    assert judge(refs.causal_conv1d, Promises(deterministic=True))[0] is None


def test_without_a_gpu_it_is_skipped_with_the_way_out() -> None:
    space = Space(CAUSAL_CONV1D, "float32", Promises())
    assert RACES.skip_reason(space) == "warps and blocks run beside each other on a GPU alone: use --device cuda"
    assert RACES.suited(space, []) == []


def test_it_is_judged_on_request_alone() -> None:
    assert list(CheckRequest("kernels:conv").laws) == [name for name in LAWS if name not in ON_REQUEST]
    assert list(CheckRequest("kernels:conv", properties=("races",)).laws) == ["races"]
