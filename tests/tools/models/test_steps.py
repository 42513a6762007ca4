"""A fault in one mode of training alone is detected there, and named with its module and parameter."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from packproof.base.names import MODES
from packproof.harness.report.events import RunFinished, Verdict
from packproof.models.check import run_module_check
from packproof.models.request import module_request
from tests.tools.models import losses, steps
from tests.tools.models.losses import CausalModel, NamedItems
from tests.tools.models.models import Counted
from tests.tools.models.steps import Stack

LAYOUTS = ((2, 3),)


def verdicts_of_modes(module: nn.Module, *modes: str, convention: str = "cu_seqlens") -> list[Verdict]:
    request = module_request(module, convention=convention, modes=modes, profile="quick", records=False)
    *_, end = run_module_check(replace(request, layouts=LAYOUTS, laws=("modes",)))
    assert isinstance(end, RunFinished)
    return list(end.verdicts)


COMPARED = [name for name in MODES if name not in ("eval", "train")]


def assert_passes_in_all_modes(module: nn.Module, convention: str = "cu_seqlens") -> None:
    verdicts = verdicts_of_modes(module, *COMPARED, convention=convention)
    assert {v.cell.op: (v.status, v.reason) for v in verdicts} == {
        f"{convention} ({name})": ("passed", "") for name in COMPARED
    }


def test_a_correct_model_passes_in_all_modes() -> None:
    assert_passes_in_all_modes(Stack())


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(5))
def test_correct_models_pass_in_all_modes(seed: int) -> None:
    torch.manual_seed(seed)
    for loss in (losses.mean_over_tokens, losses.summed, losses.mean_over_sequences, losses.per_token, losses.aligned):
        assert_passes_in_all_modes(Stack(loss=loss))
    for model in (NamedItems(losses.by_items), CausalModel(losses.by_items)):
        assert_passes_in_all_modes(model, "hf_position_ids")


class Doubled(Counted):
    """Its head is another one once it is compiled."""

    def forward(self, input_ids: Tensor, seq_idx: Tensor) -> Tensor:
        return super().forward(input_ids, seq_idx) * (2 if torch.compiler.is_compiling() else 1)


@pytest.mark.proof  # it compiles
@pytest.mark.parametrize(("model", "status"), [(Counted, "passed"), (Doubled, "failed")])
def test_a_compiled_model(model: type[Counted], status: str) -> None:
    request = module_request(
        model(), convention="seq_idx", modes=["train"], compiled=True, profile="quick", records=False
    )
    *_, end = run_module_check(replace(request, layouts=LAYOUTS, laws=("modes",)))
    assert isinstance(end, RunFinished)
    [verdict] = end.verdicts
    assert verdict.status == status, verdict
    assert verdict.failure is None or verdict.failure.tensor == "output"


MIXER = "first module that differs from plain training: layers.1.mixer"


@pytest.mark.parametrize(
    ("make", "mode", "tensor", "culprit"),
    [
        (steps.ScaleLostStack, "checkpointing", "gradient of layers.1.mixer.proj.weight", f"{MIXER} (ScaleLost)"),
        (steps.ScaleLostStack, "selective", "gradient of layers.1.mixer.proj.weight", f"{MIXER} (ScaleLost)"),
        (lambda: Stack(steps.RunningMean), "checkpointing", "buffer layers.1.mixer.running", f"{MIXER} (RunningMean)"),
        (lambda: Stack(steps.RunningMean), "reentrant", "buffer layers.1.mixer.running", f"{MIXER} (RunningMean)"),
        (
            lambda: Stack(steps.CountedDropout),
            "checkpointing",
            "gradient of layers.1.mixer.proj.bias",
            f"{MIXER} (Coun",
        ),
        (lambda: Stack(steps.OtherWithoutGrad), "reentrant", "loss", f"{MIXER} (OtherWithoutGrad)"),
        (lambda: Stack(steps.MaskReused), "accumulation", "loss of micro-batch 1", f"{MIXER} (MaskReused)"),
        (lambda: Stack(steps.GradOverwritten), "accumulation", "gradient of layers.1.mixer.weight", f"{MIXER} (Grad"),
        (lambda: Stack(steps.NeighbourDoubled), "frozen", "gradient of layers.1.mixer.weight", f"{MIXER} (Neigh"),
        (lambda: Stack(steps.InputGradientLost), "frozen", "gradient of layers.1.mixer.proj.bias", f"{MIXER} (Input"),
        (lambda: Stack(steps.CastKept), "autocast", "gradient of head.weight", f"{MIXER} (CastKept)"),
        (lambda: Stack(steps.GradientLostInCast), "autocast", "gradient of layers.1.mixer.proj.weight", f"{MIXER}"),
    ],
)
def test_a_fault_of_one_mode(make: Callable[[], nn.Module], mode: str, tensor: str, culprit: str) -> None:
    [verdict] = verdicts_of_modes(make(), mode)
    assert verdict.status == "failed", verdict
    assert verdict.failure
    assert verdict.failure.tensor == tensor, verdict.failure
    assert any(line.startswith(culprit) for line in verdict.failure.lines), verdict.failure.lines
    assert any("layers.1.mixer." in line for line in (tensor, verdict.failure.lines[-1])), "no parameter is named"


def test_adapters_of_a_frozen_model() -> None:
    plain, reentrant = verdicts_of_modes(steps.adapted(), "checkpointing", "reentrant")
    assert plain.status == "passed"
    assert reentrant.failure
    assert reentrant.failure.lines[-1].startswith("reentrant recomputation gives a layer no gradient")


def test_accumulation_that_is_normalised_by_packs() -> None:
    [verdict] = verdicts_of_modes(NamedItems(losses.by_count), "accumulation", convention="hf_position_ids")
    assert verdict.failure
    assert verdict.failure.tensor == "loss"
    assert verdict.failure.lines[0] == "the step over micro-batches, and over one pack of all:"
    assert verdict.failure.lines[2] == "first module that differs from plain training: the model itself (NamedItems)"
    assert verdict.failure.lines[-1] == "    gradients that differ: of embedding.weight and 6 others"
