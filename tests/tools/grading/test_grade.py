"""Grades from a file to a reward: a correct submission has one, a wrong one none."""

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import packproof
from packproof.base.errors import UsageError
from packproof.cli import main
from packproof.grading import Grade
from packproof.grading.grade import in_order, verdict_of
from packproof.grading.problems import draw_problems
from packproof.grading.record import grade_text
from packproof.grading.times import Baselines, WrongWhileTimed, time_problem
from packproof.harness.check import plan, run_plan
from packproof.harness.check.request import checked
from packproof.harness.check.targets.target import CheckTarget, open_target
from packproof.harness.report import Cell, RunFinished, Verdict
from packproof.properties.contracts import ContractFile

SUBMISSIONS = Path(__file__).with_name("submissions.py")
TERMS: dict[str, Any] = {
    "op": "causal_conv1d",
    "takes": ["bias", "activation"],
    "dtypes": ["fp32"],
    "profile": "quick",
}


@pytest.fixture
def contract(working_folder: Path) -> str:
    (working_folder / "conv.json").write_text(json.dumps(TERMS))
    return "conv.json"


def opened(name: str, contract: str, **options: Any) -> CheckTarget:
    values = {"target": f"{SUBMISSIONS}:{name}", "contract": ContractFile.read(contract), **options}
    return open_target(replace(checked(values), questions=False))


@pytest.mark.proof
def test_a_correct_submission_has_a_reward_for_its_speed(contract: str, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["grade", f"{SUBMISSIONS}:right", "--contract", contract, "--secret", "s", "--device", "cpu"]
    assert main.run([*arguments, "--no-isolate", "--json", "grade.json"]) == 0
    document = json.loads(Path("grade.json").read_text())
    grade, measured = document["grade"], document["measured"]
    assert grade["verdict"] == "passed"
    assert grade["secret"] is None
    assert 0.5 < measured["reward"] <= 1
    assert measured["speed_of"] == "the reference, on a CPU: no measure of a GPU kernel"
    assert len(measured["problems"]) == len(grade["problems"]) == 2
    for problem in measured["problems"]:
        assert 0 < problem["submission"]["least"] <= problem["submission"]["median"]
        assert 0 < problem["floor_seconds"] < problem["submission"]["least"] < problem["reference"]["least"]
    assert f"reward {measured['reward']:.4f}" in capfd.readouterr().out


@pytest.mark.proof
def test_a_wrong_submission_has_no_reward(contract: str) -> None:
    grade = packproof.grade(f"{SUBMISSIONS}:leaky", contract=contract, secret="s", device="cpu", isolate=False)
    assert (grade.verdict, grade.reward) == ("failed", 0.0)
    assert grade.counterexample is not None
    assert sum(grade.counterexample.lengths) <= 2
    assert grade.measured.problems == ()


@pytest.mark.proof
def test_the_same_submission_contract_and_secret_give_the_same_bytes(contract: str) -> None:
    def graded(name: str) -> dict[str, Any]:
        grade = packproof.grade(f"{SUBMISSIONS}:{name}", contract=contract, secret="s", device="cpu", timed=False)
        assert grade.isolated
        return json.loads(grade_text(grade))["grade"]

    for name in ("right", "leaky", "borrowed"):
        assert json.dumps(graded(name)) == json.dumps(graded(name))


@pytest.mark.parametrize(
    ("name", "verdict", "reason"),
    [
        ("right", "passed", "every property held: 1 passed"),
        ("leaky", "failed", "causal_conv1d packing fp32: "),
        pytest.param(
            *("borrowed", "failed", "a reference computes for it: reference packproof.refs."), marks=pytest.mark.proof
        ),
    ],
)
def test_the_verdict_follows_from_the_check(name: str, verdict: str, reason: str, contract: str) -> None:
    law = "packing" if name == "leaky" else "reference"
    target = opened(name, contract, properties=[law])
    *_, end = run_plan(plan(target.request, [target]))
    assert isinstance(end, RunFinished)
    found_verdict, found_reason = verdict_of(end)
    assert found_verdict == verdict
    assert found_reason.startswith(reason)


@pytest.mark.parametrize("name", [pytest.param("right", marks=pytest.mark.proof), "stale"])
def test_the_answer_of_an_earlier_call_is_seen_while_it_is_timed(name: str, contract: str) -> None:
    target = opened(name, contract)
    problem = next(draw_problems(target, ContractFile.read(contract).contract, 3, 1))
    if name == "right":
        assert time_problem(target, problem, Baselines(None, {})).submission is not None
        return
    with pytest.raises(WrongWhileTimed, match="in a repeated call"):
        time_problem(target, problem, Baselines(None, {}))


@pytest.mark.proof
def test_a_peer_is_timed_beside_it(contract: str) -> None:
    target = opened("right", contract)
    problem = next(draw_problems(target, ContractFile.read(contract).contract, 3, 1))
    name = f"{SUBMISSIONS}:leaky"
    times = time_problem(target, problem, Baselines.open(target, [name]))
    assert times.peers.keys() == {name}
    assert times.reference is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["k.py:f"], "--contract: a grade needs one; `packproof contract OP > FILE` writes it for an op"),
        (["k.py:f", "--contract", "none.json"], "contract: none.json: No such file or directory"),
        (["none.py:f", "--contract", "conv.json", "--device", "cpu"], "target 'none.py:f': there is no file none.py"),
        (["no_such_module:f", "--contract", "conv.json", "--device", "cpu"], "submission: there is no module no_such_"),
    ],
)
@pytest.mark.usefixtures("contract")
def test_a_wrong_call_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["grade", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"packproof: {message}")


def test_problems_are_drawn_by_the_seed(contract: str) -> None:
    target = opened("right", contract)
    terms = ContractFile.read(contract).contract
    texts = {seed: [str(problem) for problem in draw_problems(target, terms, seed, 2)] for seed in (1, 2)}
    assert texts[1] == [str(problem) for problem in draw_problems(target, terms, 1, 2)]
    assert texts[1] != texts[2]
    assert all(0 in problem.lengths for problem in draw_problems(target, terms, 1, 2))


def test_a_condition_of_the_contract_holds_at_timed_problems(working_folder: Path) -> None:
    (working_folder / "narrow.json").write_text(json.dumps({**TERMS, "domain": ["d == 48", "w <= 3", "length > 0"]}))
    problems = list(draw_problems(opened("right", "narrow.json"), ContractFile.read("narrow.json").contract, 1, 2))
    assert problems
    for problem in problems:
        assert problem.setting.sizes["d"] == 48
        assert int(problem.setting.sizes["w"]) <= 3
        assert 0 not in problem.lengths


def test_the_order_in_which_processes_are_done_changes_no_grade() -> None:
    cells = [
        Cell("causal_conv1d", "k.py:f", law, dtype, "cpu")
        for law, dtype in [
            ("reference", "float32"),
            ("packing", "bfloat16"),
            ("packing", "float32"),
            ("provenance", "all"),
        ]
    ]
    verdicts = tuple(Verdict(cell, "eager", "failed", 0, 0.0, reason=f"{cell.property} {cell.dtype}") for cell in cells)
    ends = [in_order(RunFinished(order, 1.0)) for order in permutations(verdicts)]
    assert {end.verdicts for end in ends} == {verdicts[:-1]}  # who computed is not asked of an incorrect kernel
    alone = RunFinished(verdicts[-1:], 1.0)
    assert in_order(alone) == alone
    assert {verdict_of(end)[1] for end in ends} == {"causal_conv1d reference fp32: reference float32"}


def test_the_default_grade_has_no_reward() -> None:
    grade = Grade("k.py:f", "", "c", "", "rope", "cpu", True, None, 1, "passed", "")
    assert grade.reward == 0.0


def test_an_unknown_device_is_named(contract: str) -> None:
    with pytest.raises(UsageError, match="no device is called 'tpu'"):
        packproof.grade(f"{SUBMISSIONS}:right", contract=contract, device="tpu")
