"""Each convention that an adapter declares: its correct kernel passes, and one that gets it wrong is named."""

from pathlib import Path

import pytest

from packproof.adapters.adapter import Adapter
from packproof.harness.check.failure import CellViolation, ReplayInfo, shrunk_failure
from packproof.harness.check.request import Allowance
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.report.events import Cell
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import describe_kernel, parse_declaration
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, judge_case
from packproof.properties.laws.invariance import REFERENCE
from tests.adapters.conventions import CONVENTIONS
from tests.sweeps import sweep

MOST_TOKENS = 30
# the others are the opposite of one of these, or in test_adapt, test_conversions (in 16 bits) or test_strong_gates
SAMPLE = (
    *("heads first", "batch and channels first", "ids from 1", "position_ids", "int64 offsets", "None by position"),
    *("a parameter's axes", "states (v, k)", "gates as factors", "scale folded in", "an option given"),
    "no empty sequences",
)


def report(adapter: Adapter, folder: Path, dtype: str = "float32") -> str:
    """What a check of the reference law at the golden cases reports; "" where the kernel passes."""
    declared = parse_declaration(describe_kernel(adapter), "it")
    space = Space(adapter.op, dtype, declared.promises, declared.parameters, domain=declared.domain, mixed=False)
    kernel = KernelUnderTest(
        adapter.op, InProcess(adapter), declared.promises, domain=declared.domain, conventions=declared.conventions
    )
    judged = 0
    for case in (c for c in golden_cases(space) if c.n_tokens <= MOST_TOKENS):
        violation, stopped = judge_case(kernel, REFERENCE, case)
        judged += stopped is None
        if violation is not None:
            cell = Cell(adapter.op.name, "it", "reference", dtype, "cpu")
            found = CellViolation(cell, REFERENCE, space, case, violation, judged)
            return "\n".join(
                shrunk_failure(kernel, found, Allowance(40, 5), ReplayInfo(folder=str(folder)), empty_packs=False).lines
            )
    assert judged > 5
    return ""


@sweep("name", SAMPLE, rest=[*CONVENTIONS])
def test_a_correct_kernel_passes(name: str, tmp_path: Path) -> None:
    assert report(CONVENTIONS[name].correct, tmp_path) == ""


@pytest.mark.proof
@pytest.mark.parametrize("name", CONVENTIONS)
def test_what_is_wrong_is_named(name: str, tmp_path: Path) -> None:
    convention = CONVENTIONS[name]
    text = report(convention.wrong, tmp_path)
    assert text
    assert convention.says in text, text
