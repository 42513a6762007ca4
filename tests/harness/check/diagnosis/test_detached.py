"""The advice for outputs without a gradient: it depends on the other layouts."""

from collections.abc import Callable

import pytest
from torch import Tensor

from packproof.harness.check.diagnosis.detached import detached_advice
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.invariance import REFERENCE
from tests.quality.faulty_kernels import RUNNING_SUM, constant_for_one_token, detached

_CASE = Case((1,), "float32", (("d", 3),))


@pytest.mark.parametrize(
    ("kernel", "start", "advises_forward_only"),
    [
        (detached, "a kernel without a backward pass takes --forward-only", True),
        (constant_for_one_token, "gradients come at lengths [", False),
    ],
)
def test_forward_only_is_advised_where_no_layout_has_a_gradient(
    kernel: Callable[..., Tensor], start: str, advises_forward_only: bool
) -> None:
    subject = KernelUnderTest(RUNNING_SUM, InProcess(kernel), Promises())
    violation = first_violation(subject, REFERENCE, _CASE)
    assert violation is not None
    [line] = detached_advice(subject, _CASE, violation, Space(RUNNING_SUM, "float32", Promises(), ("x", "weight")))
    assert line.startswith(start)
    assert ("--forward-only" in line) == advises_forward_only
