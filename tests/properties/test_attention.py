"""Attention as an op: what is wrong with one shows in its reference property, and nothing where nothing is."""

import pytest

from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import ATTENTION
from tests.properties.attention_kernels import BUGS, BUGS_OF_KEYS, PROMISES, planted
from tests.sweeps import sweep

LAWS = ("reference", "packing", "isolation", "causality", "permutation", "memory", "metadata", "double_backward")


def found(bug: str, law: str, cases: list[Case]) -> Violation | None:
    kernel = KernelUnderTest(ATTENTION, InProcess(planted(bug)), PROMISES)
    return next(filter(None, (first_violation(kernel, PROPERTIES[law], case) for case in cases)), None)


def golden(dtype: str) -> list[Case]:
    return [case for case in golden_cases(Space(ATTENTION, dtype, PROMISES)) if case.n_tokens <= 60]


@sweep("dtype", ["float32"], ["bfloat16"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_detected_at_small_golden_layouts(bug: str, dtype: str) -> None:
    assert found(bug, "reference", golden(dtype)) is not None


@pytest.mark.parametrize("bug", BUGS_OF_KEYS)
def test_a_bug_of_the_second_packing_is_detected_where_there_is_one(bug: str) -> None:
    cases = golden("float32")
    assert found(bug, "reference", [case for case in cases if case.key_lengths is not None]) is not None
    assert found(bug, "reference", [case for case in cases if case.key_lengths is None][:4]) is None


@pytest.mark.parametrize("law", LAWS)
@sweep("dtype", ["bfloat16"], ["float64", "float32"])
def test_a_correct_kernel_passes(law: str, dtype: str) -> None:
    space = Space(ATTENTION, dtype, PROMISES, max_tokens=60)
    violation = found("", law, [*golden(dtype)[:4], *random_cases(space, 4, seed=1)])
    assert violation is None, violation.lines()
