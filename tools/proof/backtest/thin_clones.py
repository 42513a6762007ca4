"""Clones that hold the files of the selected questions alone, to carry to another machine."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packproof.base.errors import UsageError
from packproof.proof.backtest.commits import Clones, git
from packproof.proof.backtest.entries import Candidate


@dataclass(frozen=True)
class ThinClone:
    """What was written for one project."""

    project: str
    commits: int
    size: int
    """Bytes of the packed objects."""


def write_thin_clones(cases: Iterable[Candidate], clones: Clones, folder: Path) -> Iterator[ThinClone]:
    """Write a bare repository for each project, with both commits of each question and the files that it exports.

    folder: may hold no clone of these projects yet.

    Raises UsageError where it does, or where a clone lacks a commit.
    """
    needed: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for case in cases:
        if case.checkout and case.question and not case.question.later:
            for commit in (case.entry.parent, case.entry.fix):
                needed[case.project][commit] |= set(case.checkout.folders)
    for project, folders_of in needed.items():
        repository = folder / project.replace("/", "+") / "repo"
        if repository.exists():
            raise UsageError(f"--thin: {repository} exists already; name another folder")
        source = clones.git_directory(project)
        objects = {name for commit, paths in folders_of.items() for name in _objects(source, commit, paths)}
        pack = _run_git(source, "pack-objects", "-q", "--stdout", text="\n".join(sorted(objects)) + "\n")
        repository.mkdir(parents=True)
        _run_git(repository, "init", "-q", "--bare", str(repository))
        _run_git(repository, "index-pack", "--stdin", pack=pack)
        yield ThinClone(project, len(folders_of), len(pack))


def _objects(source: Path, commit: str, paths: set[str]) -> Iterator[str]:
    """The commit, all its folders, and the files below these paths."""
    folders = _run_git(source, "rev-list", "--objects", "--no-walk", "--filter=blob:none", commit).decode()
    yield from (line.partition(" ")[0] for line in folders.splitlines())
    files = _run_git(source, "ls-tree", "-r", commit, "--", *sorted(paths)).decode()
    yield from (line.split()[2] for line in files.splitlines() if line.split()[1] == "blob")


def _run_git(directory: Path, *arguments: str, text: str = "", pack: bytes = b"") -> bytes:
    done = git(directory, *arguments, standard_input=pack or text.encode())
    if done.returncode:
        raise UsageError(f"{directory}: git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
