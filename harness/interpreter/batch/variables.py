"""Liveness of a kernel's variables: a branch or an iteration has to merge the live ones."""

import ast
from collections.abc import Iterable


class Variables:
    """The variables of a function's branches and loops.

    `merged_names`: for each if statement or loop, by its id, the variables to merge after it.
    `escaping_loops`: ids of the for loops with counters read elsewhere.
    """

    def __init__(self, function: ast.FunctionDef) -> None:
        self._names: list[ast.Name] = []  # in the order of the source
        self._spans: dict[int, slice] = {}  # id of a statement or expression -> its part of `_names`
        self._branches: list[ast.If | ast.For | ast.While] = []
        self._note(function)
        branched = [block for node in self._branches for block in (node.body, node.orelse)]
        self._blocks: list[list[ast.stmt]] = [function.body, *branched]
        loops = [node for node in self._branches if isinstance(node, ast.For)]
        self.escaping = {id(loop) for loop in loops if self._escapes(loop, loops)}
        self._counters = {id(loop.target) for loop in loops if id(loop) not in self.escaping}
        self.merged = {
            id(node): list(dict.fromkeys(self._handed_on(node.body) + self._handed_on(node.orelse)))
            for node in self._branches
        }

    def _note(self, node: ast.AST) -> None:
        first = len(self._names)
        if isinstance(node, ast.Name):
            self._names.append(node)
        elif isinstance(node, ast.If | ast.For | ast.While):
            self._branches.append(node)
        for child in ast.iter_child_nodes(node):
            self._note(child)
        if isinstance(node, ast.stmt | ast.expr):
            self._spans[id(node)] = slice(first, len(self._names))

    def _within(self, nodes: Iterable[ast.AST]) -> list[ast.Name]:
        return [name for node in nodes for name in self._names[self._spans[id(node)]]]

    def _escapes(self, loop: ast.For, loops: list[ast.For]) -> bool:
        """Whether a loop's counter is read outside of all loops over the same variable, before it is assigned again."""
        counters = {name.id for name in self._within([loop.target])}
        counting = [other for other in loops if counters & {name.id for name in self._within([other.target])}]
        counted = {id(name) for other in counting for name in self._within(other.body)}
        reads = (name for name in self._names if name.id in counters and _is_read(name) and id(name) not in counted)
        return any(not self._is_replaced(name, counting) for name in reads)

    def _is_replaced(self, read: ast.Name, counting: list[ast.For]) -> bool:
        """Whether a statement before a read assigns the variable again, on every path, and no counting loop follows."""
        counts = {id(name) for loop in counting for name in self._within([loop.target])}
        for block in self._blocks:
            for place, statement in enumerate(block):
                after = {id(name) for name in self._within(block[place + 1 :])}
                if id(read) in after and counts.isdisjoint(after) and read.id in _targets(statement):
                    return True
        return False

    def _assigned(self, body: list[ast.stmt]) -> list[str]:
        """The variables assigned by a block, without the counters of loops that do not escape."""
        stores = (name for name in self._within(body) if not _is_read(name) and id(name) not in self._counters)
        return list(dict.fromkeys(name.id for name in stores))

    def _handed_on(self, body: list[ast.stmt]) -> list[str]:
        """The variables assigned by a branch or an iteration and possibly read after it."""
        within = {id(name) for name in self._within(body)}
        read_elsewhere = {name.id for name in self._names if _is_read(name) and id(name) not in within}
        fresh: set[str] = set()  # assigned before the block reads them
        read: set[str] = set()
        for statement in body:
            names = self._within([statement])
            read |= {name.id for name in names if _is_read(name)}
            if isinstance(statement, ast.Assign):
                fresh |= {name.id for name in names if not _is_read(name)} - read
        return [name for name in self._assigned(body) if name not in fresh or name in read_elsewhere]


def _targets(statement: ast.stmt) -> set[str]:
    """The variables assigned by a plain assignment."""
    given = statement.targets if isinstance(statement, ast.Assign) else []
    parts = [part for target in given for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _is_read(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)
