"""From a violation to its smallest case: it breaks the same law in the same way."""

import pytest
from torch import Tensor

from packproof.harness.check.failure import CellViolation, ReplayInfo, shrunk_failure
from packproof.harness.check.request import Allowance
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.report.events import Cell
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from tests.quality.faulty_kernels import RUNNING_SUM, correct

_SPACE = Space(RUNNING_SUM, "float32", Promises(), ("x", "weight"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # type: ignore[arg-type]


def wrong_from_41_tokens_on(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Wrong values in large packs, and wrong gradients in small ones."""
    y = correct(x, weight, cu_seqlens=cu_seqlens)
    return y * 2 if len(x) > 40 else y + (x - x.detach())


def test_a_wrong_value_does_not_shrink_to_a_wrong_gradient() -> None:
    kernel = KernelUnderTest(RUNNING_SUM, InProcess(wrong_from_41_tokens_on), Promises())
    case, law = Case((50, 3), "float32", (("d", 3),)), PROPERTIES["reference"]
    violation = first_violation(kernel, law, case)
    assert violation is not None
    finding = CellViolation(Cell("sum", "m:f", "reference", "float32", "cpu"), law, _SPACE, case, violation, 1)
    failure = shrunk_failure(kernel, finding, Allowance(200, 20), ReplayInfo(), empty_packs=False)
    assert (failure.lengths, failure.tensor) == ((41,), "y")
