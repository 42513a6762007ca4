"""Clones for another machine: the files of both commits, and no others."""

from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.proof.backtest import Clones, write_thin_clones
from packproof.proof.backtest.commits import export, git
from packproof.proof.backtest.entries import Candidate, CheckCall, Checkout, UpstreamFix
from tests.tools.proof.backtest.test_backtest import git as run_git

PROJECT = "someone/toy"


@pytest.fixture
def case(tmp_path: Path) -> Candidate:
    """A project with a file that is needed, one beside it, and a large one elsewhere, in two commits."""
    clone = tmp_path / "full/someone+toy"
    (clone / "toy/inner").mkdir(parents=True)
    run_git(clone, "init", "-q")
    commits = []
    for k in range(2):
        (clone / "toy/inner/kernel.py").write_text(f"k = {k}\n")
        (clone / "toy/setup.py").write_text(f"large = {k}\n")
        run_git(clone, "add", "-A")
        run_git(clone, "commit", "-q", "-m", "fix")
        commits.append(run_git(clone, "rev-parse", "HEAD"))
    entry = UpstreamFix("toy-1", commits[1], commits[0], "2026-01-01", "", "in")
    return Candidate(PROJECT, entry, Checkout(PROJECT, ("toy/inner", "absent")), CheckCall("toy.inner.kernel:k"))


def test_a_thin_clone_has_the_files_of_both_commits_alone(case: Candidate, tmp_path: Path) -> None:
    (written,) = write_thin_clones([case], Clones(tmp_path / "full"), tmp_path / "thin")
    assert (written.project, written.commits) == (PROJECT, 2)
    assert case.checkout is not None
    thin = Clones(tmp_path / "thin").git_directory(PROJECT)
    for k, commit in enumerate((case.entry.parent, case.entry.fix)):
        root = export(thin, commit, case.checkout, tmp_path / str(k))
        assert (root / "toy/inner/kernel.py").read_text() == f"k = {k}\n"
        assert git(thin, "cat-file", "-e", f"{commit}:toy/setup.py").returncode != 0
    with pytest.raises(UsageError, match="exists already"):
        list(write_thin_clones([case], Clones(tmp_path / "full"), tmp_path / "thin"))


def test_a_commit_that_a_clone_lacks_is_named_with_the_way_out(case: Candidate, tmp_path: Path) -> None:
    """As in a clone that was written before a question was asked of this device."""
    list(write_thin_clones([case], Clones(tmp_path / "full"), tmp_path / "thin"))
    assert case.checkout is not None
    with pytest.raises(UsageError, match="has no commit 012345678901; fetch it, or write the clones again with --thin"):
        export(Clones(tmp_path / "thin").git_directory(PROJECT), "0123456789" * 4, case.checkout, tmp_path / "1")


def test_a_question_that_waits_needs_no_files(case: Candidate, tmp_path: Path) -> None:
    waiting = Candidate(PROJECT, case.entry, case.checkout, CheckCall("toy.inner.kernel:k", later="its language"))
    assert list(write_thin_clones([waiting], Clones(tmp_path / "full"), tmp_path / "thin")) == []
