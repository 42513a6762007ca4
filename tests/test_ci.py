"""The action and the workflows: packproof, pytest and make accept their command lines; exit codes are passed on."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from packproof.adapters.peers.registry import PEERS
from packproof.cli.main import app
from packproof.harness.check.request import OPTIONS
from packproof.harness.check.targets.builtin_kernels import BUILTIN_KERNELS
from packproof.version import __version__
from tests.in_process import pytest_in

yaml = pytest.importorskip("yaml", reason="needs PyYAML")
ROOT = Path(__file__).parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
GPU, HOSTED, NIGHTLY = (
    yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text()) for name in ("gpu", "ci", "nightly")
)
PAGE = (ROOT / "docs/ci.md").read_text()
SHOWN = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


EVERY_STEP = [*ACTION["runs"]["steps"], *(step for flow in (GPU, HOSTED, NIGHTLY, *SHOWN) for step in steps(flow))]


# The Python of a runner: the one of these tests, but for what takes long, which is recorded. pip installs into SITE.
PYTHON = f"""#!/bin/bash
case "$1 $2 $3" in
  "-m packproof check") shift 3; printf '%s\\0' "$@" > "$RECORD/check"
    if [ -e "$RECORD/result.json" ]; then cp "$RECORD/result.json" .packproof/check.json; fi; exit "$CODE" ;;
  "-m pip install") printf '%s\\n' "$4" > "$RECORD/pip"
    mkdir -p "$SITE/packproof"; touch "$SITE/packproof/__init__.py"
    cp "$4/src/packproof/version.py" "$SITE/packproof" ;;
  *) PYTHONPATH=$SITE exec {sys.executable} -S "$@" ;;
esac
"""


class Runner:
    """Runs the steps of the action in a folder, as a runner of GitHub Actions does.

    site: the folder of installed packages. code, result: how `packproof check` ends, and the JSON that it writes.
    """

    def __init__(self, folder: Path) -> None:
        self.work, self.record, self.site = (folder / name for name in ("work", "record", "site"))
        for made in (self.work, self.record, self.site):
            made.mkdir()
        self.python = folder / "python"
        self.python.write_text(PYTHON)
        self.python.chmod(0o755)
        self.code, self.log = 0, ""

    def step(self, name: str, **inputs: str) -> int:
        """The exit code of a step; its output is the log."""
        [step] = [step for step in ACTION["runs"]["steps"] if step["name"].startswith(name)]
        given = {name: inputs.get(name, spec["default"]) for name, spec in ACTION["inputs"].items()}
        given["python"] = str(self.python)
        environment = {name: given[re.findall(r"inputs\.(\w+)", text)[0]] for name, text in step["env"].items()}
        environment |= {"PATH": os.environ["PATH"], "GITHUB_OUTPUT": str(self.record / "output")}
        environment |= {"GITHUB_STEP_SUMMARY": str(self.record / "summary"), "GITHUB_ACTION_PATH": str(ROOT)}
        environment |= {"SITE": str(self.site), "RECORD": str(self.record), "CODE": str(self.code)}
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(shell, cwd=self.work, env=environment, capture_output=True, text=True, check=False)
        self.log = done.stdout + done.stderr
        return done.returncode

    def recorded(self, name: str) -> str:
        file = self.record / name
        return file.read_text() if file.exists() else ""

    @property
    def arguments(self) -> list[str]:
        """The arguments of `packproof check`."""
        return self.recorded("check").split("\0")[:-1]

    def install(self, version: str) -> None:
        """As if a packproof of this version were installed."""
        (self.site / "packproof").mkdir()
        (self.site / "packproof/__init__.py").touch()
        (self.site / "packproof/version.py").write_text(f'__version__ = "{version}"\n')


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_a_missing_packproof_is_installed_from_the_action(runner: Runner) -> None:
    assert runner.step("Install") == 0, runner.log
    assert runner.recorded("pip") == f"{ROOT}\n"
    assert "::warning" not in runner.log


def test_a_folder_of_that_name_is_no_installed_packproof(runner: Runner) -> None:
    """Such as the checkout itself, in the folder in which the step runs."""
    (runner.work / "packproof/src/packproof").mkdir(parents=True)
    assert runner.step("Install") == 0, runner.log
    assert runner.recorded("pip")


def test_a_package_that_hides_the_installed_packproof_is_an_error(runner: Runner) -> None:
    (runner.work / "packproof").mkdir()
    (runner.work / "packproof/__init__.py").touch()
    assert runner.step("Install") == 2
    assert "cannot import packproof, which pip has installed; is there another packproof in" in runner.log


@pytest.mark.parametrize(("version", "warns"), [(__version__, False), ("0.0.9", True)])
def test_an_installed_packproof_is_kept_and_another_version_is_said(
    runner: Runner, version: str, *, warns: bool
) -> None:
    runner.install(version)
    assert runner.step("Install") == 0, runner.log
    assert not runner.recorded("pip")
    said = f"::warning title=packproof::packproof 0.0.9 is installed and checks; this action is of {__version__}"
    assert (said in runner.log) is warns


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"target": "my kernels/conv.py:conv", "op": "causal_conv1d", "device": "cuda", "dtype": "bf16,fp32"},
        {"target": "m:f", "profile": "quick", "arguments": "--property packing --seed 7 --forward-only"},
    ],
    ids=["own", "a target", "arguments"],
)
def test_the_action_calls_packproof_with_valid_arguments(runner: Runner, inputs: dict[str, str]) -> None:
    runner.code = 1
    assert runner.step("Check", **inputs) == 1
    command = typer.main.get_command(app).commands["check"]  # type: ignore[attr-defined]
    parsed = command.make_context("check", runner.arguments).params
    assert {name: parsed[name] for name in inputs if name in ("target", "op", "device", "profile")} == {
        name: value for name, value in inputs.items() if name in ("target", "op", "device", "profile")
    }
    assert runner.recorded("output") == "exit-code=1\n"
    assert {Path(parsed[name]).parent.name for name in ("json", "junit", "html")} == {".packproof"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--domain 'k in (64, 128)' --seed 7", ["--domain", "k in (64, 128)", "--seed", "7"]),
        ('--domain "d % 8 == 0; length > 0"', ["--domain", "d % 8 == 0; length > 0"]),
        ("--seed 7\n--exitfirst", ["--seed", "7", "--exitfirst"]),
        ("--domain d\\ ==\\ 8", ["--domain", "d == 8"]),
        ("--seed ''", ["--seed", ""]),
        ("$(touch hit) `touch hit` ; touch hit * $HOME", ["$(touch", "hit)", "`touch", "hit`", ";", "touch", "hit"]),
    ],
    ids=["single quotes", "double quotes", "lines", "backslashes", "an empty word", "no expansion"],
)
def test_arguments_are_split_as_in_a_shell_and_not_expanded(runner: Runner, arguments: str, words: list[str]) -> None:
    assert runner.step("Check", arguments=arguments) == 0, runner.log
    start = runner.arguments.index("standard") + 1
    assert runner.arguments[start : start + len(words)] == words
    assert not (runner.work / "hit").exists()


def test_an_open_quote_is_a_wrong_call(runner: Runner) -> None:
    assert runner.step("Check", arguments="--domain 'k in (64,") == 2
    assert "::error title=packproof::arguments: a quote is not closed in --domain 'k in (64,; expected" in runner.log
    assert (runner.arguments, runner.recorded("output")) == ([], "exit-code=2\n")


RESULT = {"op": "causal_conv1d", "device": "cpu", "tier": "eager", "dtype": "float32", "judged": 2}
FAILED = {
    **RESULT,
    "target": "my kernels.py:conv",
    "property": "packing",
    "status": "failed",
    "message": "causal_conv1d · FAILED  packing (y)\n    lengths [1, 2]\n    100% wrong <y>",
    "replay": ".packproof/conv.json",
}
PASSED = {**RESULT, "target": "my kernels.py:conv", "property": "reference", "status": "passed"}


def with_packproof(runner: Runner, *results: dict[str, Any]) -> None:
    """packproof is installed, and a check will write these results."""
    (runner.site / "packproof").symlink_to(ROOT / "src/packproof")
    (runner.record / "result.json").write_text(json.dumps({"results": results}))


def test_a_failure_is_annotated_where_the_kernel_is_defined(runner: Runner) -> None:
    with_packproof(runner, FAILED, PASSED)
    (runner.work / "my kernels.py").write_text("import torch\n\n\ndef conv(x):\n    return x\n")
    runner.code = 1
    assert runner.step("Check") == 1
    [annotation] = [line for line in runner.log.splitlines() if line.startswith("::")]
    assert annotation == (
        "::error file=my kernels.py,line=4,title=packproof%3A causal_conv1d packing float32 failed::"
        "causal_conv1d · FAILED  packing (y)%0A    lengths [1, 2]%0A    100%25 wrong <y>%0A"
        "packproof replay .packproof/conv.json"
    )


def test_a_stale_entry_is_annotated_and_an_expected_failure_is_not(runner: Runner) -> None:
    with_packproof(runner, {**FAILED, "status": "stale"}, {**FAILED, "status": "expected"})
    runner.code = 1
    assert runner.step("Check") == 1
    [annotation] = [line for line in runner.log.splitlines() if line.startswith("::")]
    assert annotation.startswith("::error title=packproof%3A causal_conv1d packing float32 stale::")
    lines = runner.recorded("summary").splitlines()
    assert lines[0] == "### packproof: an expected failure is stale (exit code 1)"
    assert [line.split(" | ")[3] for line in lines[4:6]] == ["**stale**", "expected"]


def test_the_summary_has_every_result_and_the_failures_in_full(runner: Runner) -> None:
    with_packproof(runner, FAILED, PASSED)
    runner.code = 1
    assert runner.step("Check") == 1
    assert runner.recorded("summary") == (
        "### packproof: a property failed (exit code 1)\n\n"
        "| kernel | property | dtype | result | examples |\n| --- | --- | --- | --- | ---: |\n"
        "| my kernels.py:conv | causal_conv1d packing | float32 | **failed** | 2 |\n"
        "| my kernels.py:conv | causal_conv1d reference | float32 | passed | 2 |\n\n"
        "<pre>causal_conv1d · FAILED  packing (y)\n    lengths [1, 2]\n    100% wrong &lt;y&gt;</pre>\n\n"
        "4 examples judged. The artefact of this job has the HTML report and the replay files.\n"
    )


def test_a_check_that_was_refused_is_annotated_and_not_reported_by_results_of_an_earlier_one(runner: Runner) -> None:
    with_packproof(runner)
    (runner.record / "result.json").unlink()
    (runner.work / ".packproof").mkdir()
    (runner.work / ".packproof/check.json").write_text(json.dumps({"results": [PASSED]}))
    runner.code = 2
    assert runner.step("Check") == 2
    assert (
        "::error title=packproof::the call was wrong (exit code 2); the log of this step has the reason" in runner.log
    )
    assert runner.recorded("summary").startswith("### packproof: the call was wrong (exit code 2)\n\nThere are no resu")


def test_an_installed_packproof_without_summaries_does_not_change_the_exit_code(runner: Runner) -> None:
    runner.install("0.0.9")
    runner.code = 4
    assert runner.step("Check") == 4
    assert "::warning title=packproof::the installed packproof writes no summary" in runner.log


def test_the_page_names_a_tag_of_this_version_and_every_job_ends() -> None:
    assert [step["with"]["ref"] for flow in SHOWN for step in steps(flow) if "ref" in step.get("with", {})] == [
        f"v{__version__}"
    ]
    for flow in (GPU, HOSTED, NIGHTLY, *SHOWN):
        assert all(job["timeout-minutes"] for job in flow["jobs"].values())


def test_the_action_uses_every_input_and_no_other() -> None:
    used = set(re.findall(r"inputs\.([\w-]+)", yaml.dump(ACTION["runs"])))
    assert used == set(ACTION["inputs"])


@pytest.mark.parametrize("name", ["target", "op", "device", "dtypes", "profile"])
def test_an_input_is_the_option_of_the_command(name: str) -> None:
    option = OPTIONS[name]
    described = ACTION["inputs"][option.flags[0].removeprefix("--")]
    assert described["description"].startswith(option.help)
    assert described["default"] == (option.default if isinstance(option.default, str) else "")


def test_no_input_is_part_of_a_script() -> None:
    assert not [step["run"] for step in EVERY_STEP if "${{" in step.get("run", "")]


def test_other_actions_are_pinned_and_ours_is_given_what_it_takes() -> None:
    for step in EVERY_STEP:
        uses = step.get("uses", "./")
        assert uses.startswith("./") or re.search(r"@v\d", uses), uses
        if "run" not in step and uses.startswith("./"):
            assert set(step.get("with", {})) <= set(ACTION["inputs"])


@pytest.mark.parametrize("step", [s for s in EVERY_STEP if "upload-artifact" in s.get("uses", "")], ids=str)
def test_what_failed_is_kept_whatever_happened(step: dict[str, Any]) -> None:
    assert step["if"] == "always()"
    hidden = step["with"]["path"] == ".packproof/"
    assert hidden or step["with"]["path"] in ("build/matrix/results/", "build/drift/now/")
    assert step["with"].get("include-hidden-files") is (hidden or None)


@pytest.mark.parametrize("line", [step["run"] for step in steps(GPU) if "run" in step])
def test_the_workflow_for_gpus_runs_what_pytest_takes(line: str) -> None:
    tool, *arguments = shlex.split(line)
    assert tool == ".ci/env"
    assert arguments[:3] == ["python", "-m", "pytest"]
    collect = ["--collect-only", "-q", "-n0", "--packproof-device", "cpu"]
    only = [] if "examples/gpu" in arguments else ["tests/test_ci.py"]
    done = pytest_in(ROOT, *arguments[3:], *collect, *only)
    assert done.returncode == 0, done.stdout + done.stderr
    if not only:
        assert "test_ssd[packing-bf16]" in done.stdout
        source = (ROOT / "examples/gpu/test_kernels.py").read_text()
        assert not {name for name in BUILTIN_KERNELS if not name.endswith("_triton") and f'op="{name}"' not in source}


def set_up(folder: Path, extras: str) -> None:
    """What .ci/env finds where it has installed packproof before."""
    for name in (".ci/env", "pyproject.toml", "constraints.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").symlink_to(sys.executable)
    stamp = "".join((folder / name).read_text() for name in ("pyproject.toml", "constraints.txt"))
    (folder / f".venv/stamp{extras}").write_text(f"{folder}\n{stamp}")


def test_what_one_process_has_compiled_is_there_for_the_next(tmp_path: Path) -> None:
    """Whatever the environment says: a check starts several processes, the tests hundreds."""
    set_up(tmp_path, "[dev]")
    command = [".ci/env", "python", "-c", "import sys; print(sys.dont_write_bytecode)"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize(
    ("extras", "command", "installed"),
    [
        ("", "python -m packproof check --help", []),
        ("[dev]", "python -m packproof check --help", []),
        ("[dev]", "python -m packproof --version", []),
        ("", "python -m packproof --version", [".[dev]"]),
        ("", "python -m pytest --version", [".[dev]"]),
    ],
)
def test_a_check_needs_no_tools(extras: str, command: str, installed: list[str], tmp_path: Path) -> None:
    """All else does, and they are added to what a check has installed."""
    set_up(tmp_path, extras)
    python, calls = tmp_path / ".venv/bin/python", tmp_path / "calls"
    python.unlink()
    python.write_text(f'#!/bin/sh\necho "$*" >>{calls}\n')
    python.chmod(0o755)
    (tmp_path / ".venv/made-here").touch()
    bare = tmp_path / "python3"  # a Python without packages, and so without a torch to import and to ask for a GPU
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(bare)}
    subprocess.run([".ci/env", *command.split()], cwd=tmp_path, env=environment, capture_output=True, check=True)
    *before, last = calls.read_text().splitlines()
    assert last == command.removeprefix("python ")
    assert [call.split()[-1] for call in before if " install " in call] == installed
    assert (tmp_path / ".venv/stamp[dev]").exists() == bool(installed or extras)


def test_the_nightly_run_tries_every_python_that_is_allowed() -> None:
    """The workflow, the matrix and pyproject.toml name the same Pythons."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest, beyond = map(int, re.findall(r"3\.(\d+)", project["requires-python"]))
    allowed = [f"3.{minor}" for minor in range(lowest, beyond)]
    [matrix] = re.findall(r"^pythons=\((.*)\)$", (ROOT / ".ci/matrix").read_text(), re.M)
    of_matrix, of_drift = (NIGHTLY["jobs"][job]["steps"] for job in ("matrix", "drift"))
    [named] = [s["with"]["python-version"] for s in of_matrix if "setup-python" in s.get("uses", "")]
    assert matrix.split() == named.split() == allowed
    assert "make matrix" in [step.get("run") for step in of_matrix]
    [newest] = [s["with"]["python-version"] for s in of_drift if "setup-python" in s.get("uses", "")]
    assert newest == allowed[-1]


def test_the_nightly_run_compares_with_the_run_before() -> None:
    """The folder that it keeps is the one that `.ci/drift` reads and writes, beside its own."""
    [cached] = [s["with"]["path"] for s in steps(NIGHTLY) if "cache@" in s.get("uses", "")]
    [command] = [s["run"] for s in steps(NIGHTLY) if s.get("run", "").startswith(".ci/drift")]
    assert Path(cached) == Path(command.split()[1]).parent / "last"
    assert 'last=$(dirname "$out")/last' in (ROOT / ".ci/drift").read_text()


def test_releases_that_are_compared_are_those_of_packages_with_peers() -> None:
    """At least three releases of each of at least five packages, in order, and peers that they have."""
    lines = [line for line in (ROOT / ".ci/releases.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) >= 5
    for line in lines:
        requirement, *arguments = line.split(" --")[0].split()
        package, releases = requirement.split("==")
        of_package = {name for name, peer in PEERS.items() if package in peer.distributions}
        assert of_package
        assert of_package.issuperset(arguments)
        numbers = [[int(number) for number in release.split(".")] for release in releases.split(",")]
        assert len(numbers) >= 3
        assert numbers == sorted(numbers)


def test_every_dependency_has_an_oldest_version_that_was_run_and_refuses_no_newer_one() -> None:
    """An upper bound stands only where something is known to break: nothing is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in project["dependencies"]:
        assert re.fullmatch(r"[\w-]+>=[\d.]+(; .*)?", requirement), requirement


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
