"""One grade in a folder of its own, which ends with the process that asked for it: `python -m` of this module.

The standard input is a line of JSON, a `GradeJob`, and then the leash: once it is closed, by whatever ended the other
side, the grade is killed with all of its processes. Its folder is removed in any case. The standard output is a
`GradeOutcome`.
"""

import ctypes
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from packproof.base.records import from_row, to_row
from packproof.grading.many.job import GradeJob, GradeOutcome
from packproof.version import __version__

_LEASH = 0
_PR_SET_PDEATHSIG = 1
_GRADE, _ERRORS, _TEMPORARY = "grade.json", "errors", "tmp"
_CLAIM = "\0packproof-core-"  # of an abstract socket: the system frees it with the process
_MOST_ERRORS = 2000  # characters
_WRONG_CALL = 2


def main() -> None:
    """Grade the submission on the standard input."""
    if os.fork():
        # Ray kills the children of a worker that it ends. What removes the folder must be none of them.
        os._exit(0)
    os.setsid()
    job = from_row(GradeJob, json.loads(sys.stdin.buffer.readline()))
    outcome = _outcome(job) if job.version == __version__ else _other_version(job)
    print(json.dumps(to_row(outcome)), flush=True)


def _other_version(job: GradeJob) -> GradeOutcome:
    text = f"packproof {__version__} is installed on {platform.node()}, and {job.version} where the grades are made for"
    return GradeOutcome(_WRONG_CALL, errors=text, host=platform.node())


def _outcome(job: GradeJob) -> GradeOutcome:
    start = time.monotonic()
    with TemporaryDirectory(prefix="packproof-grade-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)  # as root, the kernel's process is another user
        (folder / _TEMPORARY).mkdir()
        for path, data in job.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(b64decode(data))
        claims = claim_cores(job.cores)
        code = _grade_on_leash(job, folder)
        seconds = round(time.monotonic() - start, 3)
        for claim in claims:
            claim.close()
        document, errors = _text(folder / _GRADE), _text(folder / _ERRORS)[-_MOST_ERRORS:]
        return GradeOutcome(code, document, errors, _replays(folder, document), platform.node(), seconds)


def _grade_on_leash(job: GradeJob, folder: Path) -> int:
    """The exit code of the grade. Ends this process if the leash is closed before."""
    command = ["grade", job.submission, *job.arguments, "--json", _GRADE]
    environment = {**os.environ, "TMPDIR": str(folder / _TEMPORARY)}
    if job.gpu:
        environment["CUDA_VISIBLE_DEVICES"] = job.gpu
    with (folder / _ERRORS).open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "packproof", *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  (this process has no other thread)
        )
    if _is_leash_closed_before_end(process.pid):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        sys.exit("the grade was not wanted any more")
    return process.wait()


def _end_with_parent() -> None:
    """Be killed when the process on the leash is, by whatever."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _is_leash_closed_before_end(pid: int) -> bool:
    end, poll = os.pidfd_open(pid), select.poll()
    poll.register(end, select.POLLIN)
    poll.register(_LEASH, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll()}
    os.close(end)
    return end not in ready


def claim_cores(count: int) -> Sequence[socket.socket]:
    """Keep this process, and what it starts, to cores that no other grade of this machine has claimed.

    Returns the claims. Where fewer cores are free than asked for, there is none, and all cores are shared.
    """
    claims: dict[int, socket.socket] = {}
    for core in sorted(os.sched_getaffinity(0)) if count else ():
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"{_CLAIM}{core}")
        except OSError:  # another grade has it
            claim.close()
            continue
        claims[core] = claim
        if len(claims) == count:
            os.sched_setaffinity(0, claims)
            return list(claims.values())
    for claim in claims.values():
        claim.close()
    return []


def _replays(folder: Path, document: str) -> dict[str, str]:
    counterexample = json.loads(document)["grade"]["counterexample"] if document else None
    path = counterexample["replay"] if counterexample else ""
    return {path: _text(folder / path)} if path else {}


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""


if __name__ == "__main__":
    main()
