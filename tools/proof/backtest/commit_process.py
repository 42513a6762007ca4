"""packproof in a process and an environment of one commit: no file and no variable of another commit reaches it."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packproof.proof.backtest.commits import export
from packproof.proof.backtest.entries import Checkout


@dataclass(frozen=True)
class ExportedCommit:
    """The files of a commit, and an empty folder to work in."""

    root: Path
    """The folder from which its packages are imported."""
    work: Path
    """The working directory of its processes."""
    scratch: Path
    """The folder with both, which is deleted in the end."""

    def run(self, *arguments: str, seconds: float, interpreted: bool = False) -> tuple[int, str]:
        """Run packproof. Returns its exit code, -1 for a run that was ended for its time, and its output.

        interpreted: whether kernels inside of a module run in Triton's interpreter; those that are checked do anyway.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", "packproof", *arguments],
            cwd=self.work,
            env={**self._environment(), **({"TRITON_INTERPRET": "1"} if interpreted else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return -1, output
        except BaseException:  # an interrupt does not reach it: it has a session of its own
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        return process.returncode, output

    def _environment(self) -> dict[str, str]:
        """The commit's packages first; caches of compiled kernels are its own."""
        caches = {name: str(self.scratch / name.lower()) for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
        search_path = [str(self.root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        absolute = [str(Path(p).absolute()) for p in search_path]
        return {**os.environ, **caches, "PYTHONPATH": os.pathsep.join(absolute), "PYTHONDONTWRITEBYTECODE": "1"}


@contextmanager
def exported_commit(git_directory: Path, commit: str, checkout: Checkout) -> Iterator[ExportedCommit]:
    """The commit's files, which are deleted afterwards. Raises UsageError where the clone has no such commit."""
    with tempfile.TemporaryDirectory(prefix="packproof-backtest-") as name:
        scratch = Path(name)
        work = scratch / "work"
        work.mkdir()
        yield ExportedCommit(export(git_directory, commit, checkout, scratch / "files"), work, scratch)
