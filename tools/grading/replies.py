"""Grades of replies of a model: the prompt of a task, the code in a reply, and its grade by a process of its own."""

import json
import re
from typing import Any

from packproof.base.errors import PackproofError
from packproof.grading.many.alone import run_alone
from packproof.grading.many.job import GradeJob, GradeOptions, encoded
from packproof.grading.tasks.task import GradingTask
from packproof.properties.contracts import contract_text
from packproof.properties.ops import OPS

_BLOCK = re.compile(r"^```(?:python|py)?[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_NAME = "kernel"
_MOST_ERROR = 500  # characters
_GRADED = (0, 1)  # exit codes with a verdict on the submission


def prompt_of(task: GradingTask) -> str:
    """The task in words: the op, its equation and arguments from its reference, and the terms of the contract."""
    op = OPS[task.op]
    passes = "forward and backward, by torch.autograd" if task.gradients else "forward"
    return (
        f"Write a kernel for packed sequences: `{op.name}`, {passes}. Its name is `{_NAME}`. It has the arguments of "
        f"this reference, and `cu_seqlens`, the offsets at which sequences start:\n\n{op.reference.__doc__}\n\n"
        "Each sequence has to be computed as if it were alone. Rows past the last offset may hold anything, and their "
        "outputs and gradients are zeros. Use PyTorch or Triton, and no other kernel library. The terms, as JSON:\n\n"
        f"{contract_text(task.contract)}\nAnswer with one block of Python."
    )


def code_of(reply: str) -> str | None:
    """The last block of Python in a reply; None without one."""
    blocks = _BLOCK.findall(reply)
    return blocks[-1] if blocks else None


async def graded_reply(task: GradingTask, reply: str, options: GradeOptions) -> dict[str, Any] | None:
    """The grade of the code in a reply, as `Grade.to_json`; None without code.

    Raises PackproofError for a reply that could not be judged: leave it out of the training.
    """
    code = code_of(reply)
    if code is None:
        return None
    files = {"submission.py": encoded(code.encode())}
    outcome = await run_alone(GradeJob(f"submission.py:{_NAME}", ("--task", task.name, *options.arguments), files))
    if outcome.code not in _GRADED:
        raise PackproofError(f"a reply could not be judged: {outcome.errors[-_MOST_ERROR:]}")
    document: dict[str, Any] = json.loads(outcome.document)
    return document
