"""The files of one commit, out of a clone, so that its packages can be imported."""

import io
import os
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from packproof.base.errors import UsageError
from packproof.proof.backtest.entries import Checkout

_FOLDERS = (".git", "repo", ".")  # where a clone's objects may lie: a work tree's, or a bare one


@dataclass(frozen=True)
class Clones:
    """The folder with a clone of each project, called owner+name, owner/name or name."""

    folder: Path

    def git_directory(self, project: str) -> Path:
        """Raises UsageError if there is no clone of the project."""
        owner, _, name = project.partition("/")
        for clone in (f"{owner}+{name}", project, name):
            for inner in _FOLDERS:
                path = self.folder / clone / inner
                if (path / "objects").is_dir():
                    return path
        raise UsageError(
            f"--clones: there is no clone of {project} in {self.folder}; "
            f"git clone --bare https://github.com/{project} {self.folder / f'{owner}+{name}' / 'repo'}"
        )


def export(git_directory: Path, commit: str, checkout: Checkout, folder: Path) -> Path:
    """Write the files of a commit into an empty folder. Returns the folder from which its packages are imported.

    Raises UsageError where the clone has no such commit.
    """
    if git(git_directory, "cat-file", "-e", commit).returncode:
        raise UsageError(
            f"--clones: {git_directory} has no commit {commit[:12]}; fetch it, or write the clones again with --thin"
        )
    paths = [path for path in checkout.folders if _exists(git_directory, commit, path)]
    done = git(git_directory, "archive", "--format=tar", commit, "--", *paths)
    if done.returncode:
        raise UsageError(f"{git_directory}: commit {commit[:12]}: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    root = folder / checkout.root
    for name, text in checkout.replaced.items():
        if (folder / name).exists():
            (folder / name).write_text(text)
    for module in checkout.stubs:
        path = root / (module.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return root


def _exists(git_directory: Path, commit: str, path: str) -> bool:
    return git(git_directory, "cat-file", "-e", f"{commit}:{path}").returncode == 0


def git(
    git_directory: Path, *arguments: str, standard_input: bytes | None = None
) -> "subprocess.CompletedProcess[bytes]":
    """Run git on a clone, whatever the user's settings are."""
    environment = {"PATH": os.environ.get("PATH", ""), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "safe.directory=*", f"--git-dir={git_directory}", *arguments]
    return subprocess.run(command, capture_output=True, check=False, env=environment, input=standard_input)
