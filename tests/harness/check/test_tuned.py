"""Autotuned kernels on a CPU: each configuration is judged, and a failure names and replays the one that has it."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from packproof.base.tuned import Tuned, merge_tuned
from packproof.cli import main
from packproof.harness.check.check import run_check
from packproof.harness.check.replay import replay
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.coverage import Coverage
from packproof.harness.report.events import CellFinished, Verdict
from packproof.harness.report.wording.conclusions import tuned_lines
from tests.sweeps import sweep

pytest.importorskip("triton")

HERE = Path(__file__).parents[1]
OP = f"{HERE / 'rogues_op.py'}:SCALED"
EVERY = "configurations judged: 2 of 2 of _forward_kernel, 3 of 3 of _backward_kernel"


def target(name: str) -> str:
    return f"{HERE / 'check' / 'tuned_kernels.py'}:{name}"


pytestmark = pytest.mark.usefixtures("working_folder")


def verdicts(name: str, *properties: str, **fields: Any) -> list[Verdict]:
    request = CheckRequest(target(name), OP, properties=properties, profile="quick", questions=False, **fields)
    return [event.verdict for event in run_check(request) if isinstance(event, CellFinished)]


@pytest.mark.proof
def test_every_configuration_of_a_correct_kernel_is_judged_and_passes() -> None:
    judged = verdicts("correct", "reference", "packing", dtypes=("float32",))
    assert {verdict.status for verdict in judged} == {"passed"}
    assert list(tuned_lines(judged)) == [EVERY]


@sweep("seed, draw_configs", [(0, True)], [*product(range(4), (False, True))])
def test_a_backward_kernel_wrong_in_its_second_configuration_fails(*, seed: int, draw_configs: bool) -> None:
    [verdict] = verdicts("second_is_short", "reference", dtypes=("float32",), seed=seed, draw_configs=draw_configs)
    assert verdict.failure is not None, verdict
    assert verdict.failure.tensor == "gradient of x"
    assert "_backward_kernel ran with B=8, THIRDS=False, num_warps=4, num_ctas=1, num_stages=3" in verdict.failure.lines
    outcome = replay(verdict.failure.replay)
    assert outcome.status == "failing"
    assert replay(verdict.failure.replay, target=target("correct")).status == "fixed"


def test_the_replay_file_has_the_configuration() -> None:
    [verdict] = verdicts("second_is_short", "reference", dtypes=("float32",))
    assert verdict.failure is not None
    file = Path(verdict.failure.replay)
    data = json.loads(file.read_text())
    assert data["case"]["configuration"] > 0
    data["case"]["configuration"] = 0
    file.write_text(json.dumps(data))
    assert replay(file).status == "fixed"


def test_cells_with_few_examples_cover_them_together() -> None:
    judged = verdicts("correct", "permutation", "isolation", "determinism", "strides")
    assert {verdict.status for verdict in judged} == {"passed"}
    assert list(tuned_lines(judged)) == [EVERY]


def test_a_pack_and_its_sequences_have_one_configuration() -> None:
    """Configurations that round elsewhere keep a promise of the same bits alone and in a pack."""
    judged = verdicts("rounds_elsewhere", "packing", "permutation", "determinism", dtypes=("float32",))
    assert {verdict.status for verdict in judged} == {"passed"}
    assert "2 of 2 of _forward_kernel" in next(tuned_lines(judged))


def test_what_the_kernel_prunes_does_not_run() -> None:
    judged = verdicts("short_is_pruned", "reference", dtypes=("float32",))
    assert {verdict.status for verdict in judged} == {"passed"}
    assert next(tuned_lines(judged)).endswith("2 of 2 of _backward_kernel (1 more pruned by the kernel)")


@pytest.mark.proof
def test_every_configuration_of_a_long_list_is_judged_if_asked_for() -> None:
    [usual] = verdicts("last_of_many_is_short", "reference", dtypes=("float32",))
    assert usual.status == "passed"
    assert "of 100 of _backward_kernel" in next(tuned_lines([usual]))
    [verdict] = verdicts("last_of_many_is_short", "reference", dtypes=("float32",), every_configuration=True)
    assert verdict.failure is not None, verdict
    assert any("_backward_kernel ran with B=8" in line for line in verdict.failure.lines)
    assert replay(verdict.failure.replay).status == "failing"


def test_every_configuration_of_a_correct_kernel_passes_and_is_counted() -> None:
    [verdict] = verdicts("correct_of_many", "reference", dtypes=("float32",), every_configuration=True)
    assert verdict.status == "passed", verdict.reason
    assert "70 of 70 of _backward_kernel" in next(tuned_lines([verdict]))


def test_a_configuration_that_was_not_judged_makes_it_inconclusive() -> None:
    gap = (Tuned("k", ("B=16",), ("B=16", "B=32"), 2),)
    assert Coverage(tuned=gap, judged_examples=1, has_boundary=True).status == "passed"
    sweep = Coverage(tuned=gap, judged_examples=1, has_boundary=True, is_sweep=True)
    assert sweep.status == "inconclusive"
    assert list(sweep.reasons()) == ["not judged: k with B=32"]


def test_configurations_are_judged_by_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check", target("correct"), "--op", OP, "--property", "packing", "--every-configuration"]
    assert main.run(arguments) == 2
    assert "judged by the property reference, and --property is packing; add it" in capsys.readouterr().err


def test_the_reports_say_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check", target("correct"), "--op", OP, "--profile", "quick", "--dtype", "fp32"]
    arguments += ["--property", "reference", "--json", "run.json", "--junit", "run.xml", "--html", "run.html"]
    assert main.run(arguments) == 0
    assert f"  {EVERY}\n" in capsys.readouterr().out
    assert EVERY in Path("run.xml").read_text()
    assert EVERY in Path("run.html").read_text()
    [result] = json.loads(Path("run.json").read_text())["results"]
    assert [(tuned["kernel"], len(tuned["ran"]), tuned["declared"]) for tuned in result["tuned"]] == [
        ("_forward_kernel", 2, 2),
        ("_backward_kernel", 3, 3),
    ]


def test_merged_counts_each_configuration_once() -> None:
    first, second = Tuned("k", ("a",), ("a", "b"), 3), Tuned("k", ("b", "a"), ("b", "c"), 3)
    assert merge_tuned([first], [second], [Tuned("j", ("x",), ("x",), 2)]) == (
        Tuned("k", ("a", "b"), ("a", "b", "c"), 3),
        Tuned("j", ("x",), ("x",), 2),
    )
