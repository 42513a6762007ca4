"""A grade by a process of its own, for those who may not fork: a training loop and a worker of Ray have threads."""

import asyncio
import json
import sys

from packproof.base.errors import PackproofError
from packproof.base.records import from_row, to_row
from packproof.grading.many.job import GradeJob, GradeOutcome

_LEASHED = "packproof.grading.many.leashed"


class LostGradeError(PackproofError):
    """The processes of a grade were killed, by the system or another program. It says nothing of the submission."""


async def run_alone(job: GradeJob) -> GradeOutcome:
    """How `packproof grade` ends in a process of its own. If it is cancelled, or this process dies, the grade ends.

    Raises LostGradeError.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", _LEASHED),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    leash, output = process.stdin, process.stdout
    assert leash is not None
    assert output is not None
    try:
        leash.write(json.dumps(to_row(job)).encode() + b"\n")
        data = await output.read()
    finally:
        leash.close()
        await output.read()  # until its folder is removed
        await process.wait()
    if not data.endswith(b"\n"):
        raise LostGradeError(f"{job.submission}: the process that graded it was killed")
    outcome = from_row(GradeOutcome, json.loads(data))
    if outcome.code < 0:
        raise LostGradeError(f"{job.submission}: the process that graded it was ended by signal {-outcome.code}")
    return outcome
