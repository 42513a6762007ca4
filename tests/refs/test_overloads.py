"""The types in refs/overloads.pyi are those of the ops that have them: references, their forms and kernels."""

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packproof import kernels, refs

ROOT = Path(__file__).parent.parent.parent
PACKAGES = {"refs": refs, "kernels": kernels}
STUB = ast.parse((ROOT / "refs/overloads.pyi").read_text()).body
FLAGS = ("return_final_states", "return_lse")
RESULTS = {"Literal[False]": "Tensor", "Literal[True]": "tuple[Tensor, Tensor]", "bool": "Result"}
Parameters = dict[str, tuple[str, ...]]


def typed_ops() -> Iterator[tuple[str, str]]:
    """The folder and name of each op that takes its type from the stub: from the function of its own name."""
    for folder in PACKAGES:
        for path in sorted((ROOT / folder).glob("*.py")):
            for node in ast.parse(path.read_text()).body:
                decorators = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])]
                if any("overloads." in decorator for decorator in decorators):
                    assert isinstance(node, ast.FunctionDef)
                    assert decorators[0] == f"typed_as(lambda: overloads.{node.name})"
                    yield folder, node.name


def parameters(arguments: ast.arguments) -> Parameters:
    """By name, in order: the kind of a parameter, its type, and its default if it has one."""
    listed: Parameters = {}
    defaults = [*[None] * (len(arguments.args) - len(arguments.defaults)), *arguments.defaults]
    by_position = zip(arguments.args, defaults, strict=True)
    by_keyword = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    for kind, pairs in (("by position", by_position), ("by keyword", by_keyword)):
        for parameter, default in pairs:
            assert parameter.annotation
            listed[parameter.arg] = (
                kind,
                ast.unparse(parameter.annotation),
                *([ast.unparse(default)] if default else []),
            )
    return listed


def at_run_time(op: Callable[..., Any]) -> Parameters:
    text = (
        str(inspect.signature(op)).replace("torch.Tensor", "Tensor").replace("Optional[Literal['silu']]", "Activation")
    )
    [function] = ast.parse(f"def op{text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    assert function.returns
    assert ast.unparse(function.returns) == "Tensor | tuple[Tensor, Tensor]"
    return parameters(function.args)


@pytest.mark.parametrize(("folder", "name"), list(typed_ops()))
def test_the_stub_has_the_parameters_of_an_op(folder: str, name: str) -> None:
    expected = at_run_time(getattr(PACKAGES[folder], name))
    stubs = [node for node in STUB if isinstance(node, ast.FunctionDef) and node.name == name]
    results = {}
    for stub in stubs:
        listed = parameters(stub.args)
        [flag] = [parameter for parameter in FLAGS if parameter in listed]
        assert stub.returns
        results[listed[flag][1]] = ast.unparse(stub.returns)
        assert listed | {flag: expected[flag]} == expected
        assert list(listed) == list(expected)
        assert listed[flag][2:] == (() if stub is not stubs[0] else ("False",))
    assert results == (RESULTS if len(stubs) > 1 else {"bool": "Result"})


def test_every_type_in_the_stub_is_used() -> None:
    assert {node.name for node in STUB if isinstance(node, ast.FunctionDef)} == {name for _, name in typed_ops()}
