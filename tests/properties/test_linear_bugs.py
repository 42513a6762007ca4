"""Planted bugs of the linear family and the delta rule show at the smallest layout that can show them."""

from typing import Any

import pytest

from packproof.base.axes import parse
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS
from tests.properties.linear_bugs import DELTA, LINEAR, Bug, kernel, planted
from tests.sweeps import sweep

EVERY = list(planted())


def violated(function: Any, op: str, lengths: tuple[int, ...], *, rich: bool, dtype: str = "float32") -> bool:
    """Whether the reference property fails, with final states: without options, or with all."""
    declared = OPS[op]
    optional = tuple(name for name, spec in declared.inputs.items() if parse(spec).optional)
    options = {name: values[-1 if rich else 0] for name, values in declared.options.items()}
    case = Case(
        lengths,
        dtype,
        tuple(declared.sizes[2].items()),
        present=optional if rich else (),
        options=tuple({**options, "return_final_states": True}.items()),
    )
    subject = KernelUnderTest(declared, InProcess(function), Promises(compute="fp32"))
    return first_violation(subject, PROPERTIES["reference"], case) is not None


@sweep("op, bug", EVERY[::3], EVERY)
def test_a_planted_bug_shows_at_its_smallest_layout(op: str, bug: Bug) -> None:
    assert violated(kernel(op, bug.name), op, bug.shown, rich=bug.rich)
    if bug.hidden is not None:
        assert not violated(kernel(op, bug.name), op, bug.hidden, rich=bug.rich)


@pytest.mark.parametrize("op", [*LINEAR, *DELTA])
def test_without_a_bug_the_kernel_is_correct(op: str) -> None:
    for rich in (False, True):
        assert not violated(kernel(op), op, (3, 0, 37, 1), rich=rich)


def test_there_are_forty_and_more() -> None:
    assert len(EVERY) >= 40
