"""The blocks on packproof's kernels, interpreted: proven by check_module, Mamba-2 and attention as a hybrid, and equal
to their references."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from packproof import kernels
from packproof.harness.report.events import RunFinished
from packproof.interpreter import repair
from packproof.models.check import run_module_check
from packproof.models.request import module_request
from tests.layers.blocks import FORMS, WIDTH, beyond_rounding, run_block
from tests.layers.hybrid import Hybrid

repair.install()
PADDED = (((2, 3), (0, 0, 1)),)


# one layout, since each call takes long; around segments of 8 tokens of a scan, and around chunks of 16 tokens
@pytest.mark.parametrize(
    ("make", "inputs", "layout"),
    [
        pytest.param(lambda: FORMS["mamba"].block(kernels), WIDTH, (9, 2), id="mamba", marks=pytest.mark.proof),
        pytest.param(Hybrid, None, (17, 2), id="hybrid", marks=pytest.mark.proof),
    ],
)
def test_blocks_of_kernels_isolate_and_equal_each_sequence_alone(
    make: Callable[[], nn.Module], inputs: int | None, layout: tuple[int, ...]
) -> None:
    request = module_request(make, convention="cu_seqlens", inputs=inputs, profile="quick")
    *_, end = run_module_check(replace(request, layouts=(layout,), layouts_with_padding=PADDED))
    assert isinstance(end, RunFinished)
    assert [verdict.status for verdict in end.verdicts] == ["passed", "passed", "passed"]


@pytest.mark.parametrize("name", FORMS)
def test_values_and_gradients_are_those_of_the_equations(name: str) -> None:
    form = FORMS[name]
    assert beyond_rounding(form, run_block(form.block(kernels, recompute=True), torch.float32)) == {}
