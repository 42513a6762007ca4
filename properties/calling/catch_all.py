"""The names that a function reads from its catch-all: `kwargs["bias"]`, `kwargs.get("bias")`."""

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_METHODS = ("get", "pop", "setdefault")


@dataclass(frozen=True)
class CatchAll:
    """The uses of a catch-all in the source of its function."""

    names: dict[str, bool]
    """Whether each name that is read from it is required."""
    passed_on: bool
    """Whether it is used in another way, such as `other(**kwargs)`, or ignored. It may then take further names."""


def read_catch_all(function: Callable[..., Any], parameter: str) -> CatchAll:
    """The uses of **`parameter` in a function. Without a source it may take any name."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = function.func
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # a builtin, a lambda inside a longer line, code without a file
        return CatchAll({}, passed_on=True)
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == parameter]
    reads = list(_reads(tree, parameter))
    optional = {name for name, required in reads if not required}
    return CatchAll({name: name not in optional for name, _ in reads}, passed_on=len(reads) < len(uses) or not reads)


def _reads(tree: ast.AST, parameter: str) -> Iterator[tuple[str, bool]]:
    """Each literal name read from the catch-all, and whether a call without it raises KeyError there."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(id=catch_all), slice=ast.Constant(value=str(name)), ctx=ast.Load()):
                required = True
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=catch_all), attr=method),
                args=[ast.Constant(value=str(name)), *rest],
            ) if method in _METHODS:
                required = method == "pop" and not rest
            case ast.Compare(
                left=ast.Constant(value=str(name)), ops=[ast.In() | ast.NotIn()], comparators=[ast.Name(id=catch_all)]
            ):
                required = False
            case _:
                continue
        if catch_all == parameter:
            yield name, required
