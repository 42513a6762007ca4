"""The scripts of this folder, read but not run: they set Triton's interpreter for their process."""

import ast
from pathlib import Path


def cases_of(script: str) -> list[str]:
    """The names of a script's cases."""
    tree = ast.parse((Path(__file__).parent / script).read_text(encoding="utf-8"))
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and [ast.unparse(mark) for mark in node.decorator_list] == ["case"]
    ]
