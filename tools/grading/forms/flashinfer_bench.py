"""flashinfer-bench's form: a definition and a solution, both JSON. Solutions in Python or Triton are graded."""

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from packproof.base.errors import UsageError
from packproof.grading.forms.target_file import OFFSETS, ForeignForm, read_source

_LANGUAGES = ("python", "triton")


def read_flashinfer_bench(problem: Path, submission: Path) -> ForeignForm:
    """The definition in a file, and a solution to it. Raises UsageError for files of another form."""
    definition, solution = _object(problem, "problem"), _object(submission, "submission")
    inputs, outputs = _tensors(definition, "inputs", problem), _tensors(definition, "outputs", problem)
    if solution.get("definition") != definition.get("name"):
        raise UsageError(
            f"submission: {submission} solves {solution.get('definition')!r}, and {problem} defines "
            f"{definition.get('name')!r}"
        )
    spec = solution.get("spec", {})
    if str(spec.get("language", "")).lower() not in _LANGUAGES:
        raise UsageError(
            f"submission: {submission} is in {spec.get('language')!r}; expected {' or '.join(_LANGUAGES)}: a compiled "
            "solution needs a Python file that loads it"
        )
    module, function = _entry_point(str(spec.get("entry_point", "")), submission)
    arguments = ", ".join(OFFSETS.get(name, name) for name in inputs)
    imports, call = f"from {module} import {function}", f"{function}({arguments})"
    if spec.get("destination_passing_style", True):
        imports += "\n\nfrom packproof.grading.forms.calls import call_into_outputs"
        call = f"call_into_outputs({function}, [{arguments}], {list(inputs.values())!r}, {list(outputs.values())!r})"
    return ForeignForm("flashinfer-bench", list(inputs), imports, call, _sources(solution, submission))


def _object(path: Path, label: str) -> Mapping[str, Any]:
    try:
        value = json.loads(read_source(path, label))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{label}: {path} is not JSON: {str(error)[:100]}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{label}: {path} has no JSON object; expected one of flashinfer-bench")
    return value


def _tensors(definition: Mapping[str, Any], field: str, path: Path) -> dict[str, list[str]]:
    """The axes of each tensor by name; [] for a scalar."""
    tensors = definition.get(field)
    if not isinstance(tensors, dict) or not all(isinstance(tensor, dict) for tensor in tensors.values()):
        raise UsageError(f"problem: {path} has no {field}; expected a definition of flashinfer-bench")
    return {str(name): [str(axis) for axis in tensor.get("shape") or ()] for name, tensor in tensors.items()}


def _entry_point(text: str, path: Path) -> tuple[str, str]:
    """Module and function of "main.py::run"."""
    file, separator, function = text.partition("::")
    if not separator or not function.isidentifier() or PurePosixPath(file).suffix != ".py":
        raise UsageError(f"submission: {path}: its entry_point is {text!r}, expected one such as 'main.py::run'")
    return ".".join(PurePosixPath(file).with_suffix("").parts), function


def _sources(solution: Mapping[str, Any], path: Path) -> dict[str, str]:
    entries = solution.get("sources")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"submission: {path} has no sources; expected a solution of flashinfer-bench")
    return {str(entry.get("path", "")): str(entry.get("content", "")) for entry in entries}
