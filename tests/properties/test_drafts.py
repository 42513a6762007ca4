"""Steps that accept and reject drafts: planted bugs are detected by each of their laws, and correct forms pass."""

from itertools import product

import pytest

from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import OPS
from tests.properties.draft_bugs import BUGS, Step, verify
from tests.properties.pool_bugs import FORMS
from tests.sweeps import sweep

FEW = Domain.of("length <= a")  # a step of drafts has no more
LAWS = ("reference", "packing", "isolation", "permutation", "pool", "metadata")


def first_failure(
    op: str, step: Step, law: str, dtype: str = "float32", domain: Domain = FEW, random: int = 0
) -> tuple[Case, Violation] | None:
    declared, promises = OPS[f"{op}_verify"], Promises(compute="fp32")
    kernel = KernelUnderTest(declared, InProcess(step), promises, domain=domain)
    space = Space(declared, dtype, promises, domain=domain)
    cases = [*golden_cases(space), *random_cases(space, random, seed=0)]
    found = ((case, first_violation(kernel, PROPERTIES[law], case)) for case in PROPERTIES[law].suited(space, cases))
    return next(((case, violation) for case, violation in found if violation is not None), None)


@sweep(
    "op, bug",
    [*product(["causal_conv1d"], BUGS), ("gated_delta_rule", next(iter(BUGS)))],
    [*product(["gated_delta_rule"], BUGS)],
)
def test_a_planted_bug_is_detected_by_its_laws(op: str, bug: str) -> None:
    for law in BUGS[bug]:
        assert first_failure(op, verify(op, bug), law) is not None, law


@pytest.mark.proof
@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("op", ["selective_scan", "ssd", "kda"])
def test_a_planted_bug_is_detected_in_every_op(op: str, bug: str) -> None:
    for law in BUGS[bug]:
        assert first_failure(op, verify(op, bug), law) is not None, law


@sweep("op, dtype", [("causal_conv1d", "bfloat16")], [("ssd", "float32")])
def test_a_correct_step_passes(op: str, dtype: str) -> None:
    assert all(first_failure(op, verify(op), law, dtype) is None for law in ("reference", "pool"))


@pytest.mark.proof
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("domain", [FEW, Domain()])
@pytest.mark.parametrize(("op", "form"), [(op, form) for op, forms in FORMS.items() for form in range(len(forms))])
def test_every_correct_form_of_every_step_passes(op: str, form: int, domain: Domain, dtype: str) -> None:
    assert [first_failure(op, verify(op, form=form), law, dtype, domain, 20) for law in LAWS] == [None] * len(LAWS)
