"""Problems in the forms of other graders, from their files to a verdict."""

import json
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.grading.forms.form import fixed_form
from packproof.grading.grade import verdict_of
from packproof.harness.check import plan, run_plan
from packproof.harness.check.request import checked
from packproof.harness.check.targets.target import open_target
from packproof.harness.report import RunFinished
from packproof.properties.contracts import ContractFile

PROBLEMS = Path(__file__).with_name("problems")
FORMS = {
    "kernelbot": (PROBLEMS / "kernelbot", ".py"),
    "kernelbench": (PROBLEMS / "kernelbench/problem.py", ".py"),
    "flashinfer_bench": (PROBLEMS / "flashinfer_bench/definition.json", ".json"),
}


@pytest.fixture
def contract(working_folder: Path) -> ContractFile:
    terms = {"op": "causal_conv1d", "gradients": False, "dtypes": ["fp32"], "profile": "quick"}
    (working_folder / "conv.json").write_text(json.dumps(terms))
    return ContractFile.read("conv.json")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "verdict"), [("right", "passed"), ("wrong", "failed")])
def test_a_submission_to_a_problem_of_theirs_gets_our_verdict(
    form: str, name: str, verdict: str, contract: ContractFile
) -> None:
    problem, suffix = FORMS[form]
    submission = fixed_form(str(problem), str(PROBLEMS / form / f"{name}{suffix}"), contract)
    target = open_target(
        checked({"target": submission.target, "contract": contract, "properties": ["reference", "packing"]})
    )
    *_, end = run_plan(plan(target.request, [target]))
    assert isinstance(end, RunFinished)
    assert verdict_of(end)[0] == verdict
    lengths = {v.failure.lengths for v in end.verdicts if v.failure}
    assert verdict == "passed" or (1, 1) in lengths


def test_the_folder_follows_from_the_content(contract: ContractFile) -> None:
    paths = str(PROBLEMS / "kernelbot"), str(PROBLEMS / "kernelbot/right.py")
    first, second = fixed_form(*paths, contract), fixed_form(*paths, contract)
    assert (first, first.is_unchanged) == (second, True)
    other = fixed_form(paths[0], str(PROBLEMS / "kernelbot/wrong.py"), contract)
    assert other.digest != first.digest
    (first.folder / "task.py").write_text("")
    assert not first.is_unchanged
    assert "eval.py" not in {file.name for file in first.files}


def test_a_solution_cannot_leave_its_folder(contract: ContractFile) -> None:
    solution = json.loads((PROBLEMS / "flashinfer_bench/right.json").read_text())
    for path in ("../escaped.py", "/escaped.py", "target.py", ""):
        solution["sources"][1]["path"] = path
        Path("solution.json").write_text(json.dumps(solution))
        with pytest.raises(UsageError, match="expected a relative path"):
            fixed_form(str(FORMS["flashinfer_bench"][0]), "solution.json", contract)
    assert not list(Path.cwd().parent.glob("escaped.py"))


@pytest.mark.parametrize(
    ("problem", "text", "message"),
    [
        ("problem.py", "class Model: pass\ndef get_inputs(): pass", "expected a class Model with a method forward"),
        ("problem.py", "x = 1", "has no form that packproof knows"),
        ("problem.py", "class Model\ndef get_inputs", "line 1"),
        ("problem.json", "{", "has no form that packproof knows"),
        ("problem.json", '{"axes": {}, "inputs": {"x": 1}, "outputs": {}}', "has no inputs"),
    ],
)
def test_a_file_of_no_form_is_named(problem: str, text: str, message: str, contract: ContractFile) -> None:
    Path(problem).write_text(text)
    Path("submission.json").write_text("{}")
    with pytest.raises(UsageError, match=message):
        fixed_form(problem, "submission.json", contract)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"definition": "other"}, "solves 'other', and .* defines 'packed_causal_conv1d'"),
        ({"spec": {"language": "cuda"}}, "is in 'cuda'; expected python or triton"),
        ({"spec": {"language": "python", "entry_point": "main.py"}}, "expected one such as 'main.py::run'"),
        ({"sources": "main.py"}, "has no sources"),
    ],
)
def test_a_solution_of_another_kind_is_named(change: dict[str, object], message: str, contract: ContractFile) -> None:
    solution = json.loads((PROBLEMS / "flashinfer_bench/right.json").read_text())
    Path("solution.json").write_text(json.dumps(solution | change))
    with pytest.raises(UsageError, match=message):
        fixed_form(str(FORMS["flashinfer_bench"][0]), "solution.json", contract)


def test_an_argument_without_a_meaning_is_named(contract: ContractFile) -> None:
    problem = Path("problem")
    problem.mkdir()
    (problem / "task.yml").write_text("files: []\n")
    (problem / "reference.py").write_text("def ref_kernel(data):\n    x, kernel, cu_seqlens = data\n")
    Path("submission.py").write_text("")
    with pytest.raises(UsageError, match="kernel of KernelBot's problem is no argument of causal_conv1d"):
        fixed_form("problem", "submission.py", contract)
    (problem / "reference.py").write_text("def ref_kernel(data):\n    x, weight = data\n")
    with pytest.raises(UsageError, match="has no cu_seqlens, so that it is not packed"):
        fixed_form("problem", "submission.py", contract)
