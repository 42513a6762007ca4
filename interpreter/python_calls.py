"""Calls of plain Python in a kernel that Triton compiles to its own language: `max`, `min`, and `.to` of a number.

As shipped, the interpreter runs them as Python: `max(0, block)` asks a block for its truth value, and the counter of
`for i in range(n)`, a scalar in a compiled kernel, is an int without `.to`.
"""

import ast
import builtins
from collections.abc import Callable
from functools import reduce
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as shipped

from packproof.interpreter.patch import replace

_NAMES = {"max": "__packproof_max", "min": "__packproof_min"}
_SCALAR = "__packproof_scalar"


def repair() -> None:
    """Translate the calls of each kernel that the interpreter rewrites."""
    replace(shipped.FunctionRewriter, "_transform_ast", _translate_after)


def translate(tree: Any, function: Callable[..., Any]) -> Any:
    """The syntax tree of a kernel with these calls translated. The kernel's module gets the functions' names."""
    function.__globals__.update(
        {
            _NAMES["max"]: _largest,
            _NAMES["min"]: _smallest,
            _SCALAR: _scalar,
        }
    )
    tree = _Translator(function).visit(tree)
    return ast.fix_missing_locations(tree)


def _translate_after(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, source: translate(original(self, source), self.fn)


class _Translator(ast.NodeTransformer):
    def __init__(self, function: Callable[..., Any]) -> None:
        own_names = {*function.__globals__, *function.__code__.co_varnames}
        self._names = {name: translated for name, translated in _NAMES.items() if name not in own_names}

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name):
            node.func.id = self._names.get(node.func.id, node.func.id)
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            node.func.value = ast.Call(ast.Name(_SCALAR, ast.Load()), [node.func.value], [])
        return node


def _largest(*values: Any, **options: Any) -> Any:
    return reduce(tl.maximum, values) if _has_tensor(values) else builtins.max(*values, **options)


def _smallest(*values: Any, **options: Any) -> Any:
    return reduce(tl.minimum, values) if _has_tensor(values) else builtins.min(*values, **options)


def _has_tensor(values: tuple[Any, ...]) -> bool:
    return len(values) > 1 and any(isinstance(value, tl.tensor) for value in values)


def _scalar(value: Any) -> Any:
    """A number as a scalar of the language; any other value as it is."""
    return shipped.interpreter_semantic.to_tensor(value) if type(value) in (int, float, bool) else value
