"""Triton's own autotuner takes the configurations that `packproof.accuracy` accepts."""

import pytest
import torch

import packproof
from packproof.base.errors import UsageError
from packproof.interpreter import repair_if_used
from tests.tools.debug import tuned_conv

LENGTHS = (5, 1, 14, 13, 1, 16, 10)
OFFSETS = torch.tensor(LENGTHS).cumsum(0)
CU_SEQLENS = torch.cat([torch.zeros(1, dtype=torch.int64), OFFSETS]).to(torch.int32)
RIGHT, REASSOCIATED, WRONG = tuned_conv.CONFIGS


@pytest.fixture(autouse=True)
def repaired() -> None:
    repair_if_used()  # as shipped, Triton's interpreter rounds bf16 towards zero, and no configuration is accurate
    tuned_conv._conv.cache.clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_reassociated_configuration_is_accurate_and_one_with_a_wrong_boundary_is_not(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(60, 4).to(dtype), torch.randn(4, 4).to(dtype)
    y = tuned_conv.conv(x, weight, cu_seqlens=CU_SEQLENS)
    check = tuned_conv.CHECKS[-1]
    assert check.rejected.keys() == {WRONG}
    assert check.rejected[WRONG].startswith("causal_conv1d: y: sequence ")
    assert set(tuned_conv._conv.configs_timings) == {RIGHT, REASSOCIATED}
    assert check.accepts(y)


def test_the_two_differ_in_their_bits() -> None:
    """Else the test above would say nothing about the order of a sum."""
    torch.manual_seed(0)
    x, weight = torch.randn(60, 4), torch.randn(4, 4)
    results = []
    for config in (RIGHT, REASSOCIATED):
        y = torch.empty_like(x)
        tuned_conv._conv.fn[(-(-60 // config.kwargs["BLOCK"]), 4)](
            x, weight, y, CU_SEQLENS, len(LENGTHS), 60, D=4, W=4, **config.kwargs
        )
        results.append(y)
    assert not torch.equal(*results)


def test_rows_that_a_configuration_leaves_unwritten_do_not_pass_by_those_of_the_one_before() -> None:
    x, weight = torch.randn(6, 3), torch.randn(3, 2)
    check = packproof.accuracy("causal_conv1d", {"x": x, "weight": weight}, torch.tensor([0, 6]))
    y = torch.zeros(6, 3)

    def run(rows: int) -> torch.Tensor:
        y[:rows] = packproof.refs.causal_conv1d(x, weight, cu_seqlens=torch.tensor([0, 6]))[:rows]
        return y

    assert check.accurate([6, 5], run) == [6]
    assert "y: sequence 0, token 5" in check.rejected[5]


def test_a_tuner_without_an_accurate_configuration_hears_why() -> None:
    x, weight = torch.randn(6, 3), torch.randn(3, 2)
    check = packproof.accuracy("causal_conv1d", {"x": x, "weight": weight}, torch.tensor([0, 6]))

    def run(config: str) -> torch.Tensor:
        raise RuntimeError(f"out of resources for {config}")

    with pytest.raises(
        UsageError, match=r"none of 2 configurations is accurate\n    a: RuntimeError: out of resources"
    ):
        check.accurate(["a", "b"], run)
