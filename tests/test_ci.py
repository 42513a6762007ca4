"""The action and the workflows: packproof, pytest and make accept their command lines; exit codes are passed on."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from packproof.harness.cli.main import app

yaml = pytest.importorskip("yaml", reason="needs PyYAML")
ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
GPU, HOSTED, NIGHTLY = (
    yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text()) for name in ("gpu", "ci", "nightly")
)
PAGE = (ROOT / "docs/gpu_ci.md").read_text()
SHOWN = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


EVERY_STEP = [*ACTION["runs"]["steps"], *(step for flow in (GPU, HOSTED, NIGHTLY, *SHOWN) for step in steps(flow))]


@pytest.fixture
def judged(tmp_path: Path) -> Any:
    """Runs the step of the action that checks, with a Python that records its arguments and exits with 1."""
    recorder = tmp_path / "recorder"
    recorder.write_text('#!/bin/sh\nfor argument in "$@"; do echo "$argument" >> arguments; done\nexit 1\n')
    recorder.chmod(0o755)
    [step] = [step for step in ACTION["runs"]["steps"] if step.get("id") == "check"]

    def run_check(**inputs: str) -> tuple[int, list[str], str]:
        given = {name: inputs.get(name, spec["default"]) for name, spec in ACTION["inputs"].items()}
        given["python"] = str(recorder)
        environment = {name: given[re.findall(r"inputs\.(\w+)", text)[0]] for name, text in step["env"].items()}
        environment |= {"PATH": os.environ["PATH"], "GITHUB_OUTPUT": str(tmp_path / "output")}
        done = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=environment, check=False)
        return done.returncode, (tmp_path / "arguments").read_text().splitlines(), (tmp_path / "output").read_text()

    return run_check


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"target": "my kernels/conv.py:conv", "op": "causal_conv1d", "device": "cuda", "dtype": "bf16,fp32"},
        {"target": "m:f", "profile": "quick", "arguments": "--property packing --seed 7 --forward-only"},
    ],
    ids=["own", "a target", "arguments"],
)
def test_the_action_calls_packproof_with_valid_arguments(judged: Any, inputs: dict[str, str]) -> None:
    code, arguments, output = judged(**inputs)
    assert arguments[:3] == ["-m", "packproof", "check"]
    command = typer.main.get_command(app).commands["check"]  # type: ignore[attr-defined]
    parsed = command.make_context("check", arguments[3:]).params
    assert {name: parsed[name] for name in inputs if name in ("target", "op", "device", "profile")} == {
        name: value for name, value in inputs.items() if name in ("target", "op", "device", "profile")
    }
    assert (code, output) == (1, "exit-code=1\n")
    assert {Path(parsed[name]).parent.name for name in ("json", "junit", "html")} == {".packproof"}


def test_the_action_uses_every_input_and_no_other() -> None:
    used = set(re.findall(r"inputs\.([\w-]+)", yaml.dump(ACTION["runs"])))
    assert used == set(ACTION["inputs"])


def test_no_input_is_part_of_a_script() -> None:
    assert not [step["run"] for step in EVERY_STEP if "${{" in step.get("run", "")]


def test_other_actions_are_pinned_and_ours_is_given_what_it_takes() -> None:
    for step in EVERY_STEP:
        uses = step.get("uses", "./")
        assert uses == "./" or re.search(r"@v\d", uses), uses
        if "run" not in step and (uses == "./" or "/packproof@" in uses):
            assert set(step.get("with", {})) <= set(ACTION["inputs"])


@pytest.mark.parametrize("step", [s for s in EVERY_STEP if "upload-artifact" in s.get("uses", "")], ids=str)
def test_what_failed_is_kept_whatever_happened(step: dict[str, Any]) -> None:
    assert step["if"] == "always()"
    hidden = step["with"]["path"] == ".packproof/"
    assert hidden or step["with"]["path"] == "build/matrix/results/"
    assert step["with"].get("include-hidden-files") is (hidden or None)


@pytest.mark.parametrize("line", [step["run"] for step in steps(GPU) if "run" in step])
def test_the_workflow_for_gpus_runs_what_pytest_takes(line: str) -> None:
    tool, *arguments = shlex.split(line)
    assert tool == ".ci/env"
    assert arguments[:3] == ["python", "-m", "pytest"]
    collect = ["--collect-only", "-q", "-n0", "--packproof-device", "cpu"]
    only = [] if "examples/gpu" in arguments else ["tests/test_ci.py"]
    done = subprocess.run(
        [sys.executable, *arguments[1:], *collect, *only], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if not only:
        assert "test_ssd[packing-bf16]" in done.stdout


def test_the_nightly_run_tries_every_python_that_is_allowed() -> None:
    """The workflow, the matrix and pyproject.toml name the same Pythons."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest, beyond = map(int, re.findall(r"3\.(\d+)", project["requires-python"]))
    allowed = [f"3.{minor}" for minor in range(lowest, beyond)]
    [matrix] = re.findall(r"^pythons=\((.*)\)$", (ROOT / ".ci/matrix").read_text(), re.M)
    [named] = [s["with"]["python-version"] for s in steps(NIGHTLY) if "setup-python" in s.get("uses", "")]
    assert matrix.split() == named.split() == allowed
    assert "make matrix" in [step.get("run") for step in steps(NIGHTLY)]


def test_every_dependency_has_an_oldest_and_a_newest_version_that_were_run() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in project["dependencies"]:
        assert re.fullmatch(r"[\w-]+>=[\d.]+,<[\d.]+(; .*)?", requirement), requirement


def test_the_workflow_for_hosted_runners_makes_existing_targets() -> None:
    lines = [step["run"].split() for step in steps(HOSTED) if "run" in step]
    assert lines == [["make", "lint"], ["make", "test"], ["make", "docs"]]
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    assert {target for _, target in lines} <= targets
    assert HOSTED[True].keys() == {"push", "pull_request"}  # YAML reads the key `on` as true


def test_no_workflow_runs_untrusted_code_on_a_self_hosted_runner() -> None:
    assert "pull_request" not in GPU[True]
    assert {job["runs-on"] for job in HOSTED["jobs"].values()} == {"ubuntu-latest"}


def test_what_continuous_integration_runs_is_linted_first() -> None:
    assert re.findall(r"make (\w+)", (ROOT / ".ci/run").read_text()) == ["lint", "test"]
