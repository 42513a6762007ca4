"""Steps on a pool of states: planted bugs show at their smallest layout, correct forms pass, and refusals are clear."""

from collections.abc import Callable
from typing import Any

import pytest

from packproof.harness.check.request import Allowance
from packproof.harness.check.shrink import shrink
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS
from tests.properties.pool_bugs import FORMS, Bug, planted, step
from tests.sweeps import sweep

EVERY = list(planted())
IDS = [f"{op}: {bug.name}" for op, bug in EVERY]


def under_test(op: str, function: Callable[..., Any], dtype: str) -> tuple[KernelUnderTest, Space]:
    declared = OPS[f"{op}_update"]
    promises = Promises(compute="fp32")
    return KernelUnderTest(declared, InProcess(function), promises), Space(declared, dtype, promises)


def smallest(op: str, bug: Bug) -> Case | None:
    """The case that a report of the bug has, by its law."""
    kernel, space = under_test(op, step(op, bug.name), bug.dtype)
    law = PROPERTIES[bug.law]

    def fails(case: Case) -> bool:
        return first_violation(kernel, law, case) is not None

    found = next(filter(fails, golden_cases(space)), None)
    return None if found is None else shrink(found, space, fails, Allowance(150, 10))[0]


def check_shown(op: str, bug: Bug) -> None:
    found = smallest(op, bug)
    assert found is not None, "not detected"
    assert found.lengths == bug.smallest, str(found)


OF_SSD = [bug for op, bug in EVERY if op == "ssd"]


@sweep("bug", OF_SSD[::2], OF_SSD)
def test_a_planted_bug_is_shown_at_its_smallest_layout(bug: Bug) -> None:
    check_shown("ssd", bug)


@pytest.mark.parametrize("bug", [bug for op, bug in EVERY if bug.ops == ("causal_conv1d",)], ids=lambda bug: bug.name)
def test_a_planted_bug_of_a_window_is_shown_at_its_smallest_layout(bug: Bug) -> None:
    check_shown("causal_conv1d", bug)


@pytest.mark.proof
@pytest.mark.parametrize(("op", "bug"), EVERY, ids=IDS)
def test_every_planted_bug_of_every_op_is_shown_at_its_smallest_layout(op: str, bug: Bug) -> None:
    check_shown(op, bug)


LAWS_OF_A_STEP = ("reference", "packing", "isolation", "causality", "permutation", "pool", "memory", "metadata")


def false_alarms(op: str, form: int, dtype: str, laws: tuple[str, ...], random: int) -> list[str]:
    kernel, space = under_test(op, step(op, form=form), dtype)
    cases = [*golden_cases(space), *random_cases(space, random, seed=0)]
    found = ((case, first_violation(kernel, PROPERTIES[law], case)) for law in laws for case in cases)
    return [f"{case}: {violation}" for case, violation in found if violation is not None]


@pytest.mark.parametrize(("op", "dtype"), [("causal_conv1d", "bfloat16"), ("ssd", "float32")])
def test_a_correct_step_passes(op: str, dtype: str) -> None:
    assert false_alarms(op, 0, dtype, ("pool",), 0) == []


@pytest.mark.proof
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("op", "form"), [(op, form) for op, forms in FORMS.items() for form in range(len(forms))])
def test_every_correct_form_of_every_step_passes(op: str, form: int, dtype: str) -> None:
    assert false_alarms(op, form, dtype, LAWS_OF_A_STEP, 20) == []
