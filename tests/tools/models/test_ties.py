"""Near ties of a router: reported as such, in documents alone and beside others; and they hide no leak."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from packproof.harness.report.events import RunFinished, Verdict
from packproof.models.check import run_module_check
from packproof.models.laws.isolation import ROUNDINGS
from packproof.models.request import module_request
from tests.tools.models.models import Routed

LAYOUTS = ((5, 7), (12,), (3, 0, 9))  # of more than 9 rows, with documents of fewer, and none


def verdicts(apart: Callable[[Tensor], Tensor], **options: object) -> dict[str, Verdict]:
    torch.manual_seed(1)  # whether others change a sign is a matter of chance
    request = module_request(Routed(apart), convention="cu_seqlens", profile="quick", records=False, **options)  # type: ignore[arg-type]
    *_, end = run_module_check(replace(request, layouts=LAYOUTS))
    assert isinstance(end, RunFinished)
    return {verdict.cell.property: verdict for verdict in end.verdicts}


def rounding(x: Tensor) -> float:
    return torch.finfo(x.dtype).eps


def by_rows(x: Tensor) -> Tensor:
    """A rounding up or down with the number of rows, as products of matrices have it."""
    return torch.full((len(x),), rounding(x) * (1 if len(x) > 9 else -1))


def by_others(x: Tensor) -> Tensor:
    """A rounding up or down with the values of all rows, as where an expert gets another number of them."""
    return torch.full((len(x),), rounding(x) * (1 if int(x.detach().double().sum() * 1e3) % 2 else -1))


def by_others_strongly(x: Tensor) -> Tensor:
    """The same sign, by so much that it is a leak, without a gradient."""
    return by_others(x) * 8 * ROUNDINGS


@pytest.mark.parametrize("apart", [by_rows, by_others])
def test_near_ties_are_reported_and_no_failure(apart: Callable[[Tensor], Tensor]) -> None:
    found = verdicts(apart)
    assert {v.status for v in found.values()} == {"passed"}, found
    assert "near ties: " in found["packing"].reason
    assert "choices of a router or a top-k fell otherwise by rounding, and were made alike" in found["packing"].reason
    if apart is by_others:
        assert "near ties: " in found["isolation"].reason


def test_what_moves_scores_by_more_than_rounding_is_a_leak() -> None:
    found = verdicts(by_others_strongly)
    assert found["isolation"].status == "failed"


def test_a_router_that_sees_other_documents_differs_from_alone() -> None:
    found = verdicts(lambda x: torch.full((len(x),), 1e-4 * (1 if len(x) > 9 else -1)))
    assert found["packing"].status == "failed"


def test_without_ties_nothing_is_said() -> None:
    found = verdicts(lambda x: torch.ones(len(x)))
    assert {(v.status, v.reason) for v in found.values()} == {("passed", "")}
