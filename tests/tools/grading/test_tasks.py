"""The task set: its contracts can be met, by the correct solution of each and not by the incorrect one."""

from collections import Counter
from dataclasses import replace

import pytest

import packproof
from packproof.base.errors import UsageError
from packproof.cli import main
from packproof.grading.grade import verdict_of
from packproof.grading.problems import draw_problems
from packproof.grading.tasks.task import GradingTask, task_of, tasks
from packproof.grading.times import Baselines, WrongWhileTimed, time_problem
from packproof.harness.check import plan, run_plan
from packproof.harness.check.request import checked
from packproof.harness.check.targets.target import open_target
from packproof.harness.report import RunFinished
from packproof.properties.contracts import Contract, contract_text

HANDFUL = ("causal_conv1d-forward-easy", pytest.param("rope-backward-easy", marks=pytest.mark.proof))


def verdict_on(task: GradingTask, solution: str) -> tuple[str, str]:
    """The verdict of a check by one of its properties."""
    values = {"target": solution, "contract": task.contract_file, "properties": ["reference"], "device": "cpu"}
    request = replace(checked(values), questions=False, fail_fast=True)
    *_, end = run_plan(plan(request, [open_target(request)]))
    assert isinstance(end, RunFinished)
    return verdict_of(end)


def test_there_are_forty_or_more_of_three_difficulties_and_both_passes() -> None:
    assert len(tasks()) >= 40
    assert Counter(task.gradients for task in tasks().values()).keys() == {True, False}
    assert {task.level for task in tasks().values()} == {"easy", "medium", "hard"}


@pytest.mark.parametrize("name", HANDFUL)
def test_the_correct_solution_passes_and_the_incorrect_one_fails(name: str) -> None:
    task = task_of(name)
    assert verdict_on(task, task.right)[0] == "passed"
    verdict, reason = verdict_on(task, task.wrong)
    assert verdict == "failed"
    assert " contract " not in reason  # it is wrong, and does not only lack an argument


@pytest.mark.parametrize("name", ["cross_entropy-backward-medium", "policy_loss_sequences-forward-medium"])
def test_a_loss_is_timed_and_judged_as_a_whole(name: str) -> None:
    """No output is one of tokens, or one is that of the pack."""
    task = task_of(name)
    right, wrong = (
        open_target(checked({"target": solution, "contract": task.contract_file, "device": "cpu"}))
        for solution in (task.right, task.wrong)
    )
    [problem] = draw_problems(right, task.contract, 3, 1)
    assert time_problem(right, problem, Baselines(None, {})).submission is not None
    with pytest.raises(WrongWhileTimed):
        time_problem(wrong, problem, Baselines(None, {}))


@pytest.mark.proof
@pytest.mark.parametrize("name", sorted(tasks()))
def test_each_task_is_graded(name: str) -> None:
    task = task_of(name)
    right = packproof.grade(task.right, task=name, secret="s", device="cpu")
    assert (right.verdict, right.reward >= 0.5) == ("passed", True), right.reason
    wrong = packproof.grade(task.wrong, task=name, secret="s", device="cpu")
    assert (wrong.verdict, wrong.reward) == ("failed", 0.0), wrong.reason


def test_a_level_asks_for_more_than_the_one_below() -> None:
    easy, medium, hard = (task_of(f"ssd-backward-{level}").contract for level in ("easy", "medium", "hard"))
    assert len(easy.dtypes) < len(medium.dtypes) < len(hard.dtypes)
    assert easy.takes == ()
    assert set(medium.takes) == set(hard.takes) > {"initial_states"}
    assert (medium.promises.deterministic, hard.promises.deterministic) == (False, True)
    assert easy.gradients
    assert not task_of("ssd-forward-easy").contract.gradients


def test_its_contract_is_one() -> None:
    task = task_of("ssd-forward-hard")
    assert isinstance(task.contract, Contract)
    assert task.contract_file.contract == task.contract
    assert task.reference == "packproof.refs.ssd:ssd"
    assert len(task.contract_file.digest) == 64


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["grade", "--tasks"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(tasks())
    assert main.run(["grade", "--task", "rope-forward-easy"]) == 0
    out = capsys.readouterr().out
    assert out.endswith(contract_text(task_of("rope-forward-easy").contract))
    assert "wrong      packproof.museum.rotary:R1" in out


def test_wrong_names_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="no task is called 'ssd-hard'"):
        packproof.grade("k.py:f", task="ssd-hard")
    with pytest.raises(UsageError, match="either a contract or the name of a task"):
        packproof.grade("k.py:f")
    assert main.run(["grade"]) == 2
    assert capsys.readouterr().err.startswith("packproof: SUBMISSION: a grade needs one")
