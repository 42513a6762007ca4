"""`packproof check` passes every correct kernel: none fails, and none is inconclusive for a reason of packproof's own.

Correct kernels of the museum, of users' ops, and of bugs that were reported in the field (tests/field), on the CPU, and
on a GPU where there is one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import packproof
from packproof.harness.report.failed import CheckFailed
from packproof.museum import Control, controls
from packproof.properties.declarations.promises import Promises
from tests.in_process import packproof_in
from tests.properties import losses
from tests.properties.own_ops import KERNELS

FIELD = Path(__file__).parents[1] / "field"
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
PROFILES = ("quick", "standard")


def in_field(module: str, kernel: str = "correct", **options: Any) -> dict[str, Any]:
    return {"target": f"{FIELD / module}.py:{kernel}", **options}


def op_of(module: str, name: str = "OP") -> str:
    return f"{FIELD / module}.py:{name}"


CORRECT: Mapping[str, Mapping[str, Any]] = {
    "label_roll": in_field("label_roll", op=op_of("label_roll")),
    "shift_by_padded_offsets": in_field("shift_by_padded_offsets"),
    "fp8_descale_by_tile": in_field("fp8_descale_by_tile", op=op_of("fp8_descale_by_tile"), forward_only=True),
    "diagonal_of_the_maxima": in_field("diagonal_of_the_maxima"),
    "grouped_mm_overhang": in_field("grouped_mm_overhang"),
    "starts_from_positions": in_field("starts_from_positions"),
    "balance_loss": in_field("balance_loss", op=op_of("balance_loss")),
    "balance_loss, a scalar": in_field("balance_loss", "correct_sum", op=op_of("balance_loss", "SUM")),
    "means_of_chunks": in_field("means_of_chunks", op=op_of("means_of_chunks")),
    "ring_of_stale_keys": in_field("ring_of_stale_keys"),
    "local_offsets": in_field("local_offsets"),
    "local_offsets in torch": in_field("local_offsets", "correct_in_torch"),
    "cache_slot_minus_one": in_field("cache_slot_minus_one"),
    "rejected_drafts": in_field("rejected_drafts"),
    "no_gate_no_term, gated": in_field("no_gate_no_term", "correct_gated", op="gated_delta_rule"),
    "no_gate_no_term": in_field("no_gate_no_term", op="delta_rule"),
    "lse_of_empty_keys": in_field("lse_of_empty_keys"),
    "sliding_window": in_field("sliding_window"),
    "a shift": in_field("smallest", "correct_shift", op=op_of("shift_by_padded_offsets")),
    "a choice by topk": in_field("smallest", "best", op=op_of("smallest", "BEST")),
}


def promises_on(device: str, control: Control) -> Promises:
    """On a GPU without equal bits: torch's reductions add in an order that depends on the number of rows there."""
    if device == "cpu":
        return Promises(**control.promises)
    return Promises(**{name: value for name, value in control.promises.items() if name in ("compute", "cumsum")})


SMALLEST = ("a shift", "a choice by topk")  # ops of users; there is no report of an incorrect kernel


@pytest.mark.proof
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", CORRECT)
def test_correct_versions_of_reported_bugs(name: str, profile: str, device: str) -> None:
    packproof.check(**CORRECT[name], profile=profile, device=device)


@pytest.mark.proof
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("control", controls().values(), ids=lambda control: control.id)
def test_correct_kernels_of_the_museum(control: Control, profile: str, device: str) -> None:
    promises = promises_on(device, control)
    packproof.check(control.kernel, op=control.op, promises=promises, profile=profile, device=device)


@pytest.mark.proof
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", KERNELS)
def test_correct_kernels_of_users_ops(name: str, profile: str, device: str) -> None:
    op, kernel, _ = KERNELS[name]
    packproof.check(kernel, op=op, profile=profile, device=device)


@pytest.mark.proof
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", losses.CORRECT)
def test_correct_kernels_of_losses(name: str, profile: str, device: str) -> None:
    op, kernel = losses.CORRECT[name]
    packproof.check(kernel, op=op, profile=profile, device=device)


@pytest.mark.proof
@pytest.mark.parametrize(("model", "exit_code"), [("Correct", 0), ("Incorrect", 1)])
def test_a_model_of_a_reported_bug(model: str, exit_code: int, tmp_path: Path) -> None:
    target = f"{FIELD / 'longrope_of_the_longest'}.py:{model}"
    done = packproof_in(tmp_path, "model", target, "--convention", "cu_seqlens", "--device", "cpu")
    assert done.returncode == exit_code, done.stdout + done.stderr


@pytest.mark.proof
@pytest.mark.parametrize("name", [name for name in CORRECT if name not in SMALLEST])
def test_incorrect_versions_of_reported_bugs(name: str) -> None:
    incorrect = {**CORRECT[name], "target": CORRECT[name]["target"].replace(":correct", ":incorrect")}
    with pytest.raises(CheckFailed, match="FAILED"):
        packproof.check(**incorrect, profile="quick", device="cpu")


def test_each_report_from_the_field_is_checked() -> None:
    modules = {path.stem for path in FIELD.glob("*.py")} - {"longrope_of_the_longest"}  # a model: packproof model
    assert modules == {Path(str(options["target"]).partition(":")[0]).stem for options in CORRECT.values()}
