"""Kernels of other languages than Triton are judged by each configuration that their autotuner may choose."""

from pathlib import Path
from typing import Any

import pytest

from packproof.harness.check.check import run_check
from packproof.harness.check.replay import replay
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import CellFinished, Verdict
from packproof.harness.report.wording.conclusions import tuned_lines
from tests.sweeps import sweep

HERE = Path(__file__).parent
OP = f"{HERE.parent / 'rogues_op.py'}:SCALED"
LANGUAGES = ("helion", "tilelang", "quack")

pytestmark = pytest.mark.usefixtures("working_folder")


def target(name: str) -> str:
    file = "another_release.py" if name == "beside_another_release" else "language_kernels.py"
    return f"{HERE / file}:{name}"


def verdict(name: str, **fields: Any) -> Verdict:
    """Of the property reference."""
    fields = {"properties": ("reference",), "dtypes": ("float32",), "profile": "quick", "device": "cpu", **fields}
    request = CheckRequest(target(name), OP, questions=False, **fields)
    [judged] = [event.verdict for event in run_check(request) if isinstance(event, CellFinished)]
    return judged


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_correct_kernel_passes_in_each_configuration(language: str) -> None:
    judged = verdict(f"{language}_correct")
    assert judged.status == "passed", judged.reason
    assert list(tuned_lines([judged])) == ["configurations judged: 3 of 3 of scaled_rows"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_kernel_wrong_in_one_configuration_fails_and_is_replayed_with_it(language: str) -> None:
    judged = verdict(f"{language}_wrong")
    assert judged.failure is not None, judged
    assert any(line.startswith("scaled_rows ran with block") and "16" in line for line in judged.failure.lines)
    assert replay(judged.failure.replay).status == "failing"
    assert replay(judged.failure.replay, target=target(f"{language}_correct")).status == "fixed"


@sweep("language", [*LANGUAGES][:1], [*LANGUAGES])
def test_the_last_of_many_configurations_is_judged_if_all_are_asked_for(language: str) -> None:
    assert verdict(f"{language}_long").status == "passed"
    assert verdict(f"{language}_long", every_configuration=True).failure is not None


@pytest.mark.parametrize("language", ["helion", "quack"])  # TileLang's run later than they are chosen
def test_a_configuration_that_does_not_run_is_named_if_all_are_asked_for(language: str) -> None:
    assert verdict(f"{language}_unfit").status == "passed"
    judged = verdict(f"{language}_unfit", every_configuration=True)
    assert judged.status == "inconclusive"
    assert "not judged: scaled_rows with block" in judged.reason


def test_a_search_space_is_drawn_from() -> None:
    judged = verdict("helion_searched", every_configuration=True)
    assert judged.failure is not None
    assert any("scaled_rows (drawn from its search space) ran with" in line for line in judged.failure.lines)


def test_what_quack_prunes_does_not_run() -> None:
    judged = verdict("quack_pruned")
    assert judged.status == "passed"
    assert next(tuned_lines([judged])).endswith("2 of 2 of scaled_rows (1 more pruned by the kernel)")


def test_an_autotuner_of_another_release_is_named_if_all_are_asked_for() -> None:
    assert verdict("beside_another_release").status == "passed"
    judged = verdict("beside_another_release", every_configuration=True)
    assert judged.status == "inconclusive"
    assert "not judged: quack.autotuner, which is not as packproof knows it" in judged.reason
