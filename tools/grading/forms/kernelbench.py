"""KernelBench's form: a file with `Model`, `get_inputs` and `get_init_inputs`, and a submission with `ModelNew`.

The arguments of `Model.forward` are inputs by their names. The other inputs of the op are parameters of the module:
each case sets them by the last part of their names.
"""

import ast
from pathlib import Path

from packproof.base.axes import parse
from packproof.base.errors import UsageError
from packproof.grading.forms.target_file import OFFSETS, ForeignForm, read_source
from packproof.properties.contracts import Contract
from packproof.properties.ops import Op

_IMPORTS = """from problem import get_init_inputs
from submission import ModelNew

from packproof.grading.forms.calls import call_with_parameters

_model = ModelNew(*get_init_inputs())"""


def read_kernelbench(problem: Path, submission: Path, op: Op, contract: Contract) -> ForeignForm:
    """The problem of a file, and a submission to it. Raises UsageError for files of another form."""
    source = read_source(problem, "problem")
    names = _arguments_of_forward(source, problem)
    required = [name for name, spec in op.inputs.items() if not parse(spec).optional or name in contract.takes]
    parameters = [name for name in required if name not in names]
    by_name = ", ".join(f'"{name}": {name}' for name in parameters)
    arguments = "".join(f", {OFFSETS.get(name, name)}" for name in names)
    return ForeignForm(
        "KernelBench",
        [*names, *parameters],
        _IMPORTS,
        f"call_with_parameters(_model, {{{by_name}}}{arguments})",
        {"problem.py": source, "submission.py": read_source(submission, "submission")},
    )


def _arguments_of_forward(source: str, path: Path) -> list[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise UsageError(f"problem: {path}: {error.msg}, line {error.lineno}") from None
    for model in tree.body:
        if isinstance(model, ast.ClassDef) and model.name == "Model":
            for method in model.body:
                if isinstance(method, ast.FunctionDef) and method.name == "forward":
                    return [argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)][1:]
    raise UsageError(f"problem: {path}: expected a class Model with a method forward, as in KernelBench")


def is_kernelbench(source: str) -> bool:
    """Whether a source has the functions of a problem of KernelBench."""
    return "class Model" in source and "def get_inputs" in source
