"""The blocks on packproof's kernels, interpreted: proven by check_module, and equal to their references."""

import pytest
import torch

from packproof import kernels
from packproof.harness.interpreter import repair
from packproof.harness.modules import check
from tests.layers.blocks import FORMS, WIDTH, beyond_rounding, run_block

repair.install()
LAYOUTS = [(17, 2)]  # around chunks of 16 tokens; one, since each call takes long
PADDED = [((2, 3), (0, 0, 1))]


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_a_block_of_kernels_isolates_and_equals_each_sequence_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "layouts_for", lambda module, most_tokens: LAYOUTS)
    monkeypatch.setattr(check, "many_documents", lambda most_tokens: ())
    monkeypatch.setattr(check, "padded_layouts", lambda module, between: PADDED)
    block = FORMS[name].block(kernels)
    verdicts = check.check_module(block, convention="cu_seqlens", inputs=WIDTH, profile="quick")
    assert [verdict.status for verdict in verdicts] == ["passed", "passed", "passed"]


@pytest.mark.parametrize("name", FORMS)
def test_values_and_gradients_are_those_of_the_equations(name: str) -> None:
    form = FORMS[name]
    assert beyond_rounding(form, run_block(form.block(kernels, recompute=True), torch.float32)) == {}
