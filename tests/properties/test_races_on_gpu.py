"""The races property on a GPU: a stream that is not awaited, and packproof's own kernels."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from packproof.harness.process.execution.execute import InProcess
from packproof.kernels import causal_conv1d
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.call_contract import PERTURBED_CALLS, RACES
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import CAUSAL_CONV1D
from tests.properties import wrong

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SAME_BITS = Promises(deterministic=True)


def judge(function: Callable[..., Any]) -> tuple[Violation | None, KernelUnderTest]:
    """At one small layout."""
    space = Space(CAUSAL_CONV1D, "float32", SAME_BITS, frozenset({"x", "weight", "cu_seqlens"}), on_gpu=True)
    case = next(case for case in golden_cases(space) if case.n_tokens)
    kernel = KernelUnderTest(CAUSAL_CONV1D, InProcess(function, "cuda"), SAME_BITS)
    return first_violation(kernel, RACES, case.replace(lengths=(30, 1, 50))), kernel


def test_a_stream_that_is_not_awaited_fails() -> None:
    violation, _ = judge(wrong.races)
    assert violation is not None


def test_a_correct_kernel_is_quiet() -> None:
    violation, kernel = judge(causal_conv1d)
    assert violation is None
    assert kernel.perturbed_calls["races"] == PERTURBED_CALLS
