"""Which variables of a kernel a branch or an iteration hands on, so that they have to be merged."""

import ast
from collections.abc import Iterable, Iterator
from typing import TypeGuard


class Variables:
    """Of a function as it was written. `merged`: by the id of an if statement or a loop, its variables. `escaping`: the
    ids of for loops whose counters are read elsewhere.
    """

    def __init__(self, function: ast.FunctionDef) -> None:
        nodes = list(ast.walk(function))
        self._reads = [node for node in nodes if _reads(node)]
        loops = [node for node in nodes if isinstance(node, ast.For)]
        self.escaping = {id(loop) for loop in loops if self._escapes(loop, loops)}
        self._counters = {id(loop.target) for loop in loops} - {id(n.target) for n in loops if id(n) in self.escaping}
        self.merged: dict[int, list[str]] = {}
        for node in nodes:
            if isinstance(node, ast.If):
                self.merged[id(node)] = self._assigned(node.body + node.orelse)
            elif isinstance(node, ast.For | ast.While):
                self.merged[id(node)] = self._carried(node.body)

    def _escapes(self, loop: ast.For, loops: list[ast.For]) -> bool:
        """Whether a counter is read outside of the loops that count with it."""
        names = {node.id for node in ast.walk(loop.target) if _assigns(node)}
        counting = [other for other in loops if names & {node.id for node in ast.walk(other.target) if _assigns(node)}]
        counted = {id(node) for other in counting for node in _walk(other.body)}
        return any(node.id in names and id(node) not in counted for node in self._reads)

    def _assigned(self, body: Iterable[ast.stmt]) -> list[str]:
        """The variables that a block assigns, but for counters that are not read after their loops."""
        stores = (node for node in _walk(body) if _assigns(node) and id(node) not in self._counters)
        return list(dict.fromkeys(node.id for node in stores))

    def _carried(self, body: Iterable[ast.stmt]) -> list[str]:
        """The variables that an iteration leaves to the next, or to what follows the loop."""
        within = {id(node) for node in _walk(body)}
        read_elsewhere = {node.id for node in self._reads if id(node) not in within}
        fresh: set[str] = set()  # assigned before they are read
        read: set[str] = set()
        for statement in body:
            read |= {node.id for node in ast.walk(statement) if _reads(node)}
            if isinstance(statement, ast.Assign):
                fresh |= {node.id for node in ast.walk(statement) if _assigns(node)} - read
        return [name for name in self._assigned(body) if name not in fresh or name in read_elsewhere]


def _walk(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    for statement in body:
        yield from ast.walk(statement)


def _reads(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _assigns(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
