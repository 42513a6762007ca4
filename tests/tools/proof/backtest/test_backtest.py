"""The backtest of a small project, whose history is made here: a kernel loses its boundaries, and gets them back."""

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.proof.backtest.commit_check import CommitCheck, FailedCell, read_report
from packproof.proof.backtest.commit_process import ExportedCommit
from packproof.proof.backtest.commits import Clones, export
from packproof.proof.backtest.entries import Candidate, CheckCall, Checkout, UpstreamFix, selected
from packproof.proof.backtest.outcome import FixOutcome, compare_commits
from packproof.proof.backtest.page import as_markdown, line, summary
from packproof.proof.backtest.run import append_outcome, merged, read_outcomes, run_case

PROJECT = "someone/toy"
CORRECT = """
import extension
import torch

def running_sum(x, weight, *, cu_seqlens):
    pieces = [x[a:b].cumsum(0) for a, b in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist())]
    return torch.cat([*(piece * weight for piece in pieces), torch.zeros_like(x[int(cu_seqlens[-1]):])])
"""
INCORRECT = CORRECT.replace(
    "for a, b in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist())", "for a, b in [(0, int(cu_seqlens[-1]))]"
)
QUESTION = CheckCall(
    "toy.kernel:running_sum",
    op="tests.quality.faulty_kernels:RUNNING_SUM",
    dtypes=("fp32",),
    device="cpu",
    profile="quick",
)
CHECKOUT = Checkout(PROJECT, ("toy", "absent"), replaced={"toy/__init__.py": ""}, stubs=("extension",))
FAILED = FailedCell("packing", "float32", "y", (1, 1), "y in sequence 1 contains sequence 0")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def history(tmp_path: Path) -> tuple[Path, str, str]:
    """The folder of clones, the parent and the fix."""
    clone = tmp_path / "someone+toy"
    (clone / "toy").mkdir(parents=True)
    git(clone, "init", "-q")
    (clone / "toy/__init__.py").write_text("raise RuntimeError('it needs more than the kernel')\n")
    commits = []
    for text in (INCORRECT, CORRECT):
        (clone / "toy/kernel.py").write_text(text)
        git(clone, "add", "-A")
        git(clone, "commit", "-q", "-m", "fix boundaries")
        commits.append(git(clone, "rev-parse", "HEAD"))
    return tmp_path, commits[0], commits[1]


def case_of(parent: str, fix: str, question: CheckCall | None = QUESTION) -> Candidate:
    entry = UpstreamFix(
        f"toy-{fix[:8]}",
        fix,
        parent,
        "2026-01-01",
        "someone/toy#7",
        "in",
        fault="boundaries | lost",
        symbol="toy.kernel:f",
    )
    return Candidate(PROJECT, entry, CHECKOUT, question)


def test_the_files_of_a_commit_are_brought_out_alone(history: tuple[Path, str, str], tmp_path: Path) -> None:
    folder, parent, _ = history
    root = export(Clones(folder).git_directory(PROJECT), parent, CHECKOUT, tmp_path / "files")
    assert (root / "toy/kernel.py").read_text() == INCORRECT
    assert (root / "toy/__init__.py").read_text() == ""
    assert (root / "extension.py").read_text() == ""


def test_a_missing_clone_or_commit_is_named(history: tuple[Path, str, str], tmp_path: Path) -> None:
    folder, _, _ = history
    with pytest.raises(UsageError, match="there is no clone of someone/else"):
        Clones(folder).git_directory("someone/else")
    with pytest.raises(UsageError, match="commit 000000000000"):
        export(Clones(folder).git_directory(PROJECT), "0" * 40, CHECKOUT, tmp_path / "files")


@pytest.mark.proof
@pytest.mark.parametrize(("swapped", "fate"), [(False, "detected"), (True, "missed")])
def test_a_fix_is_detected_and_its_undoing_is_not(history: tuple[Path, str, str], swapped: bool, fate: str) -> None:
    folder, parent, fix = history
    case = case_of(parent, fix)
    outcome = run_case(case.swapped if swapped else case, Clones(folder), "cpu", seconds=60)
    assert outcome.fate == fate
    assert bool(outcome.speaking) is not swapped


REMAINING_FAULT = """

def running_sum_of_few(x, weight, *, cu_seqlens):
    lengths = cu_seqlens.diff()
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    return y * 2 if max(lengths.tolist(), default=0) > 40 else y
"""


@pytest.mark.proof
@pytest.mark.parametrize(("swapped", "fate"), [(False, "detected"), (True, "another reason")])
def test_a_fix_is_detected_beside_a_fault_that_remains(
    history: tuple[Path, str, str], swapped: bool, fate: str
) -> None:
    """The same properties fail at both commits: that of the parent at a case that holds at the fix."""
    folder, _, _ = history
    clone, commits = folder / "someone+toy", []
    for text in (INCORRECT, CORRECT):
        (clone / "toy/kernel.py").write_text(text + REMAINING_FAULT)
        git(clone, "commit", "-q", "-am", "fix boundaries")
        commits.append(git(clone, "rev-parse", "HEAD"))
    question = replace(QUESTION, target="toy.kernel:running_sum_of_few", options=("--property", "reference"))
    case = case_of(commits[0], commits[1], question)
    outcome = run_case(case.swapped if swapped else case, Clones(folder), "cpu", seconds=60)
    assert outcome.fate == fate, outcome
    assert outcome.at_fix
    assert bool(outcome.mended) is not swapped


SHORT_PACKS_FAIL = """

def running_sum_of_many(x, weight, *, cu_seqlens):
    y = running_sum(x, weight, cu_seqlens=cu_seqlens)
    return y * 2 if len(x) < 100 else y
"""


@pytest.mark.proof
def test_a_domain_is_asked_about_only_where_a_fault_of_both_commits_hides_the_other(
    history: tuple[Path, str, str],
) -> None:
    folder, parent, fix = history
    domain, options = ("tokens >= 100",), ("--property", "reference")
    asked_once = run_case(case_of(parent, fix, replace(QUESTION, domain=domain)), Clones(folder), "cpu", seconds=60)
    assert (asked_once.fate, asked_once.reason) == ("detected", "")
    clone, commits = folder / "someone+toy", []
    for text in (INCORRECT, CORRECT):
        (clone / "toy/kernel.py").write_text(text + SHORT_PACKS_FAIL)
        git(clone, "commit", "-q", "-am", "fix boundaries")
        commits.append(git(clone, "rev-parse", "HEAD"))
    question = replace(QUESTION, target="toy.kernel:running_sum_of_many", options=options)
    hidden = run_case(case_of(commits[0], commits[1], question), Clones(folder), "cpu", seconds=60)
    assert hidden.fate == "another reason"
    case = case_of(commits[0], commits[1], replace(question, domain=domain))
    outcome = run_case(case, Clones(folder), "cpu", seconds=60)
    assert outcome.fate == "detected"
    assert outcome.reason.startswith("asked again for tokens >= 100: both commits fail outside.")


def test_what_cannot_be_asked_or_run_says_why(history: tuple[Path, str, str]) -> None:
    folder, parent, fix = history
    for question, fate, reason in (
        (None, "cannot be asked", "no question"),
        (replace(QUESTION, later="its language"), "cannot be asked", "its language"),
        (replace(QUESTION, device="cuda"), "not run", "needs a GPU"),
    ):
        outcome = run_case(case_of(parent, fix, question), Clones(folder), "cpu", seconds=60)
        assert (outcome.fate, outcome.parent) == (fate, None)
        assert reason in outcome.reason


@pytest.mark.proof
def test_what_cannot_be_imported_names_the_packages(history: tuple[Path, str, str]) -> None:
    folder, parent, fix = history
    case = case_of(parent, fix, replace(QUESTION, target="toy.absent:running_sum"))
    assert case.checkout
    case = replace(case, checkout=replace(case.checkout, packages=("toy-extension==1.0", "numpy")))
    outcome = run_case(case, Clones(folder), "cpu", seconds=60)
    assert outcome.fate == "cannot be asked"
    assert outcome.reason.endswith("; it needs toy-extension==1.0, numpy")


def test_an_interrupted_check_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = []

    def interrupt(process: "subprocess.Popen[str]", timeout: float | None = None) -> None:
        processes.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ExportedCommit(tmp_path, tmp_path, tmp_path).run("list", seconds=60)
    assert processes[0].poll() == -signal.SIGKILL


def trial(*failed: FailedCell, judged_cells: int = 3, text: str = "") -> CommitCheck:
    return CommitCheck("0" * 40, 1 if failed else 0, 1.5, failed, judged_cells, text)


@pytest.mark.parametrize(
    ("parent", "fix", "fate"),
    [
        (trial(FAILED), trial(), "detected"),
        (trial(FAILED), trial(replace(FAILED, dtype="bfloat16")), "another reason"),
        (trial(FAILED, replace(FAILED, law="strides")), trial(FAILED), "detected"),
        (trial(replace(FAILED, tensor="x")), trial(FAILED), "another reason"),
        (trial(replace(FAILED, fault="TypeError: None has no len()")), trial(FAILED), "another reason"),
        (trial(), trial(), "missed"),
        (trial(), trial(FAILED), "missed"),
        (trial(judged_cells=0, text="no module"), trial(), "cannot be asked"),
        (trial(replace(FAILED, message="ImportError: no such name"), judged_cells=0), trial(), "cannot be asked"),
    ],
)
def test_the_fix_alone_makes_the_difference(parent: CommitCheck, fix: CommitCheck, fate: str) -> None:
    assert compare_commits("toy", parent, fix).fate == fate


def test_a_fault_has_words_without_place_and_numbers(tmp_path: Path) -> None:
    cell = {"property": "memory", "dtype": "float32", "status": "failed", "lengths": [1], "message": ""}
    rows = [
        {**cell, "tensor": "", "cause": "(chunk.py:89)TypeError: object of type 'NoneType' has no len() "},
        {**cell, "tensor": "y", "cause": "values"},
    ]
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"results": rows}))
    failed, held = read_report(report)
    assert [f.fault for f in failed] == ["TypeError: object of type 'NoneType' has no len()", ""]
    assert held == ()


def test_a_failure_of_a_packer_has_the_options_that_run_it_again(tmp_path: Path) -> None:
    line = "packproof packs check a.b:pack --kind packer --lengths '8,1' --capacity 8"
    row = {"property": "complete", "dtype": "all", "status": "failed", "lengths": [8, 1], "cause": ""}
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"results": [{**row, "message": f"title\n\n\n    lost\n    {line}\n"}]}))
    [cell], _ = read_report(report)
    assert cell.again == ("--kind", "packer", "--lengths", "8,1", "--capacity", "8")


PACKERS = """

def pack(lengths, capacity):
    return [[(j, 0, min(n, capacity - LOST))] for j, n in enumerate(lengths)]
"""


@pytest.mark.proof
def test_a_packers_fault_is_detected_beside_one_that_remains(history: tuple[Path, str, str]) -> None:
    """complete fails at both commits: at the parent for documents of a full pack, at the fix for longer ones."""
    folder, _, _ = history
    clone, commits = folder / "someone+toy", []
    for lost in (1, 0):
        (clone / "toy/kernel.py").write_text(PACKERS.replace("LOST", str(lost)))
        git(clone, "commit", "-q", "-am", "fix the last token")
        commits.append(git(clone, "rev-parse", "HEAD"))
    question = CheckCall(
        "toy.kernel:pack", "packs check", device="cpu", profile="quick", options=("--property", "complete")
    )
    case = case_of(commits[0], commits[1], question)
    assert run_case(case, Clones(folder), "cpu", seconds=60).fate == "detected"
    assert run_case(case.swapped, Clones(folder), "cpu", seconds=60).fate == "another reason"


def test_runs_go_on_and_are_merged(tmp_path: Path) -> None:
    done, absent = compare_commits("a", trial(FAILED), trial()), FixOutcome("b", "not run", "it needs a GPU")
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    for outcome in (done, absent):
        append_outcome(first, outcome)
    append_outcome(second, replace(absent, fate="missed", reason=""))
    with first.open("a") as lines:
        lines.write('{"id": "c", "fa')  # it was stopped here
    assert read_outcomes(first) == {"a": done, "b": absent}
    append_outcome(first, replace(done, id="d"))
    assert read_outcomes(first).keys() == {"a", "b", "d"}
    assert merged([first, second])["b"].fate == "missed"
    assert read_outcomes(tmp_path / "none") == {}
    with pytest.raises(UsageError, match="there is no such file"):
        merged([tmp_path / "none"])


def test_the_page_has_the_misses_first() -> None:
    cases = [case_of("1" * 40, "2" * 40), case_of("3" * 40, "4" * 40), case_of("5" * 40, "6" * 40)]
    cases[2] = replace(cases[2], entry=replace(cases[2].entry, scope="out", reason="a feature"))
    detected, missed = (
        compare_commits("toy-22222222", trial(FAILED), trial()),
        compare_commits("toy-44444444", trial(), trial()),
    )
    outcomes = {outcome.id: outcome for outcome in (detected, missed)}
    assert summary(cases, outcomes) == "in scope: 1 of 2 detected; 1 missed"
    assert line(detected).endswith("packing y")
    page = as_markdown(cases, outcomes)
    assert page.index("## Missed: 1") < page.index("## Detected: 1") < page.index("a feature")
    assert "boundaries \\| lost" in page
    assert "packing y at [1, 1]" in page


def test_swapped_outcomes_stand_beside_those_of_the_fixes() -> None:
    case = case_of("1" * 40, "2" * 40)
    undone = case.swapped
    assert (undone.entry.parent, undone.entry.fix) == (case.entry.fix, case.entry.parent)
    outcomes = {
        outcome.id: outcome
        for outcome in (
            compare_commits(case.entry.id, trial(FAILED), trial()),
            compare_commits(undone.entry.id, trial(), trial(FAILED)),
        )
    }
    assert summary([case], outcomes) == "in scope: 1 of 1 detected\nswapped: 0 of 1 detected"
    page = as_markdown([case], outcomes)
    assert "## Swapped: 1" in page
    assert "commit/1111111111111111111111111111111111111111) | not detected | only after: packing y |" in page
    assert "Swapped" not in as_markdown([case], {case.entry.id: outcomes[case.entry.id]})


@pytest.mark.parametrize(
    ("shard", "message"), [("3/2", "expected i/n"), ("2", "expected i/n"), ("0/4", "expected i/n")]
)
def test_a_shard_is_i_of_n(shard: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        selected((), shard)
