"""Inputs that an op requires and a kernel may omit: it is judged without them at the op's neutral value."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import packproof
from packproof import refs
from packproof.harness.check.notes import feature_notes
from packproof.harness.check.request import CheckRequest
from packproof.harness.check.targets.target import open_target
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS
from tests.sweeps import sweep

FIELD = Path(__file__).parents[1] / "field" / "no_gate_no_term.py"
CHECK: dict[str, Any] = {"device": "cpu", "dtypes": ["fp32"], "properties": ["reference"], "profile": "quick"}


def scaled(x: Tensor, factor: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return x * factor


def scaled_or_not(x: Tensor, factor: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    return x.clone() if factor is None else x * factor


def doubled_without_factor(x: Tensor, factor: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    return 2 * x if factor is None else x * factor


def with_a_default_for_its_place(x: Tensor, factor: Any = None, *, cu_seqlens: Tensor) -> Tensor:
    return x * factor.clone()


SCALED = packproof.Op(
    name="scaled", reference=scaled, inputs={"x": "t d", "factor": "d"}, outputs={"y": "t d"}, neutral={"factor": 1.0}
)


def test_a_kernel_with_a_fault_only_without_the_gate_fails() -> None:
    with pytest.raises(packproof.CheckFailed, match=r"gradient of beta[\s\S]*without g"):
        packproof.check(f"{FIELD}:incorrect_gated", op="gated_delta_rule", **CHECK)


@sweep("kernel", [with_a_default_for_its_place], [scaled_or_not])
def test_a_kernel_that_omits_an_input_correctly_passes(kernel: Any) -> None:
    [verdict] = packproof.check(kernel, op=SCALED, **CHECK)
    needs_factor = kernel is with_a_default_for_its_place
    assert ("it cannot do without factor: AttributeError" in verdict.reason) == needs_factor


def test_a_wrong_value_without_the_input_fails() -> None:
    with pytest.raises(packproof.CheckFailed, match=r"FAILED  reference[\s\S]*without factor"):
        packproof.check(doubled_without_factor, op=SCALED, **CHECK)


def test_without_a_neutral_value_the_report_says_what_is_not_tested() -> None:
    request = CheckRequest(doubled_without_factor, op=dataclasses.replace(SCALED, neutral={}), device="cpu")
    words = (
        "has a default for factor, but scaled requires it and has no neutral value for it, so it is not tested without"
    )
    assert any(words in note for note in feature_notes(open_target(request)))


def test_parameters_of_an_omitted_gate_are_omitted_too() -> None:
    space = Space(OPS["gated_delta_rule"], "float32", Promises(), required=("q", "k", "v", "beta"))
    omitting = [case for case in golden_cases(space) if case.omitted]
    assert [case.omitted for case in omitting] == [("g",), ("g",)]
    for case in omitting:
        sample = draw(space.op, case)
        assert not {"g", "A_log", "dt_bias"} & {*sample.passed_inputs}
        assert not {"A_log", "dt_bias"} & {*sample.inputs}
        assert not sample.inputs["g"].any()
        assert "g" not in sample.wrt
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


def test_a_kernel_without_defaults_is_called_with_all() -> None:
    assert not any(case.omitted for case in golden_cases(Space(OPS["gated_delta_rule"], "float32", Promises())))


@pytest.mark.parametrize(
    ("neutral", "words"),
    [
        ({"y": 1.0}, "neutral"),
        ({"factor": float("nan")}, r"neutral\['factor'\] is nan, expected a finite number"),
        ([("factor", 1.0)], "neutral"),
    ],
    ids=["no input", "no number", "no mapping"],
)
def test_a_wrong_declaration_is_refused(neutral: Any, words: str) -> None:
    with pytest.raises(packproof.UsageError, match=words):
        dataclasses.replace(SCALED, neutral=neutral)


def test_a_reference_at_its_neutral_gate_is_the_rule_without_it() -> None:
    """The neutral values of the ops are what they are called."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(5, 2, 3, dtype=torch.float64) for _ in range(3))
    beta, cu_seqlens = torch.rand(5, 2, dtype=torch.float64), torch.tensor([0, 2, 5])
    plain = refs.delta_rule(q, k, v, beta, cu_seqlens=cu_seqlens)
    gated = refs.gated_delta_rule(q, k, v, torch.zeros_like(beta), beta, cu_seqlens=cu_seqlens)
    assert torch.equal(plain, gated)
