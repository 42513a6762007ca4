"""Correct kernels at cases where they once failed: what a budget had left out."""

import pytest

from packproof.harness.process.execution.execute import InProcess
from packproof.museum import controls
from packproof.properties.cases.case import Case
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS

CASES = {
    "a cut piece begins its chunks again: it has other cumulative sums than the whole": (
        "ssd.own_grid",
        "carry",
        Case(
            lengths=(15, 5, 4, 2, 51),
            dtype="float64",
            sizes=(("h", 6), ("p", 19), ("n", 3), ("g", 2)),
            slack=1,
            present=("z", "initial_states"),
            axes=(("D", 1),),
            options=(("dt_softplus", True), ("return_final_states", True)),
            regime="hard decay",
            seed=6,
        ),
    ),
    "a softmax over one score has second derivatives of terms that cancel": (
        "attention.correct",
        "double_backward",
        Case(
            lengths=(1, 0, 1, 0),
            dtype="float32",
            sizes=(("hq", 6), ("hk", 2), ("k", 8), ("v", 8)),
            slack=16,
            options=(("causal", False), ("window_size", (5, 0)), ("softmax_scale", None)),
            regime="wide",
            seed=4,
        ),
    ),
    "a query that sees no key has no second derivative": (
        "attention.two_pass",
        "double_backward",
        Case(
            lengths=(1, 0, 0, 3),
            key_lengths=(1, 0, 1, 1),
            dtype="float64",
            sizes=(("hq", 2), ("hk", 2), ("k", 8), ("v", 8)),
            options=(("causal", True), ("return_lse", True), ("softcap", 1.5)),
            seed=2,
        ),
    ),
    "a query that sees its sink alone has second derivatives": (
        "attention.two_pass",
        "double_backward",
        Case(
            lengths=(3, 1),
            key_lengths=(0, 2),
            dtype="float32",
            sizes=(("hq", 2), ("hk", 2), ("k", 8), ("v", 8)),
            present=("sinks",),
            options=(("causal", True), ("return_lse", True)),
            seed=2,
        ),
    ),
    "a sink without a share of a softmax has a gradient without one": (
        "attention.two_pass",
        "reference",
        Case(
            lengths=(3,),
            dtype="float64",
            sizes=(("hq", 1), ("hk", 1), ("k", 17), ("v", 18)),
            present=("sinks",),
            options=(("softmax_scale", 0.3), ("softcap", 50.0)),
            regime="wide",
        ),
    ),
}


@pytest.mark.parametrize("why", CASES)
def test_a_correct_kernel_passes(why: str) -> None:
    name, judged, case = CASES[why]
    control = controls()[name]
    kernel = KernelUnderTest(OPS[control.op], InProcess(control.load()), Promises(**control.promises))
    violation = first_violation(kernel, PROPERTIES[judged], case)
    assert violation is None, violation.lines()
