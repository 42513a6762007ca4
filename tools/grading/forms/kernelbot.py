"""KernelBot's form: a folder with task.yml and reference.py, and a submission with `custom_kernel(data)`.

`data` is a tuple. Its names are those to which `ref_kernel` of reference.py unpacks it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packproof.base.errors import UsageError
from packproof.grading.forms.target_file import OFFSETS, ForeignForm, read_source

REFERENCE, TASK = "reference.py", "task.yml"
_SUBMISSION = "@SUBMISSION@"
_NAME = "submission.py"


def read_kernelbot(problem: Path, submission: Path) -> ForeignForm:
    """The problem of a folder, and a submission to it. Raises UsageError for files of another form."""
    names = _names_of_data(read_source(problem / REFERENCE, "problem"), problem / REFERENCE)
    sources = {name: read_source(problem / source, "problem") for name, source in _files(problem)}
    module, text = _NAME.removesuffix(".py"), read_source(submission, "submission")
    data = ", ".join(OFFSETS.get(name, name) for name in names)
    return ForeignForm(
        "KernelBot",
        names,
        f"from {module} import custom_kernel",
        f"custom_kernel(({data},))",
        {**sources, _NAME: text},
    )


def _names_of_data(source: str, path: Path) -> list[str]:
    """The names to which the reference unpacks its argument."""
    for function in _functions(source, path):
        if function.name != "ref_kernel":
            continue
        [parameter] = [argument.arg for argument in function.args.args][:1] or [""]
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == parameter:
                target = node.targets[0]
                elements = target.elts if isinstance(target, ast.Tuple | ast.List) else []
                if elements and all(isinstance(element, ast.Name) for element in elements):
                    return [element.id for element in elements if isinstance(element, ast.Name)]
    raise UsageError(f"problem: {path}: expected `def ref_kernel(data)` with a line such as `x, cu_seqlens = data`")


def _functions(source: str, path: Path) -> Iterator[ast.FunctionDef]:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise UsageError(f"problem: {path}: {error.msg}, line {error.lineno}") from None
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _files(problem: Path) -> Iterator[tuple[str, str]]:
    """The sources beside a submission, by name. The grader's own eval.py is not run."""
    task = _task(problem / TASK)
    for entry in task.get("files", ()):
        name, source = str(entry.get("name", "")), str(entry.get("source", ""))
        if source != _SUBMISSION and name.endswith(".py") and name != str(task.get("config", {}).get("main", "")):
            yield name, source


def _task(path: Path) -> dict[str, Any]:
    try:
        import yaml  # noqa: PLC0415  (optional)
    except ModuleNotFoundError:
        raise UsageError("problem: KernelBot's task.yml needs PyYAML; pip install pyyaml") from None
    try:
        task = yaml.safe_load(read_source(path, "problem"))
    except yaml.YAMLError as error:
        raise UsageError(f"problem: {path}: no YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(task, dict) or not isinstance(task.get("files"), list):
        raise UsageError(f"problem: {path}: expected a mapping with `files`, as KernelBot's task.yml has")
    return task
