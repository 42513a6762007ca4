"""Which form a problem has, and the submission to it, fixed."""

import json
from pathlib import Path

from packproof.base.errors import UsageError
from packproof.grading.forms.flashinfer_bench import read_flashinfer_bench
from packproof.grading.forms.kernelbench import is_kernelbench, read_kernelbench
from packproof.grading.forms.kernelbot import REFERENCE, TASK, read_kernelbot
from packproof.grading.forms.target_file import ForeignForm, read_source, write_form
from packproof.grading.submission import FixedSubmission
from packproof.harness.check.targets import resolve_op
from packproof.properties.contracts import Contract, ContractFile
from packproof.properties.declarations import Declaration
from packproof.properties.ops import Op

_EXPECTED = (
    "a folder with task.yml and reference.py (KernelBot), a Python file with Model and get_inputs (KernelBench), or "
    "the JSON of a definition (flashinfer-bench)"
)


def fixed_form(problem: str, submission: str, contract: ContractFile) -> FixedSubmission:
    """A submission to a problem of another form, fixed. Raises UsageError.

    problem: the path of its folder or file.
    submission: the path of the file.
    """
    op = resolve_op(contract.contract.op, Declaration(), contract.path)
    form = _read(Path(problem), Path(submission), op, contract.contract)
    return write_form(form, op, submission)


def _read(problem: Path, submission: Path, op: Op, contract: Contract) -> ForeignForm:
    if (problem / TASK).is_file() and (problem / REFERENCE).is_file():
        return read_kernelbot(problem, submission)
    if problem.suffix == ".py" and is_kernelbench(read_source(problem, "problem")):
        return read_kernelbench(problem, submission, op, contract)
    if problem.suffix == ".json" and _is_definition(read_source(problem, "problem")):
        return read_flashinfer_bench(problem, submission)
    raise UsageError(f"problem: {problem} has no form that packproof knows; expected {_EXPECTED}")


def _is_definition(text: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and {"axes", "inputs", "outputs"} <= value.keys()
