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
        self._collect(function)
        branch_blocks = [block for node in self._branches for block in (node.body, node.orelse)]
        self._blocks: list[list[ast.stmt]] = [function.body, *branch_blocks]
        loops = [node for node in self._branches if isinstance(node, ast.For)]
        self.escaping_loops = {id(loop) for loop in loops if self._escapes(loop, loops)}
        self._counters = {id(loop.target) for loop in loops if id(loop) not in self.escaping_loops}
        self.merged_names = {
            id(node): list(dict.fromkeys(self._live_after(node.body) + self._live_after(node.orelse)))
            for node in self._branches
        }

    def _collect(self, node: ast.AST) -> None:
        start = len(self._names)
        if isinstance(node, ast.Name):
            self._names.append(node)
        elif isinstance(node, ast.If | ast.For | ast.While):
            self._branches.append(node)
        for child in ast.iter_child_nodes(node):
            self._collect(child)
        if isinstance(node, ast.stmt | ast.expr):
            self._spans[id(node)] = slice(start, len(self._names))

    def _names_within(self, nodes: Iterable[ast.AST]) -> list[ast.Name]:
        return [name for node in nodes for name in self._names[self._spans[id(node)]]]

    def _escapes(self, loop: ast.For, loops: list[ast.For]) -> bool:
        """Whether a loop's counter is read outside of all loops over the same variable, before it is assigned again."""
        counters = {name.id for name in self._names_within([loop.target])}
        counting_loops = [
            other_loop
            for other_loop in loops
            if counters & {name.id for name in self._names_within([other_loop.target])}
        ]
        counted_names = {id(name) for other_loop in counting_loops for name in self._names_within(other_loop.body)}
        reads = (
            name for name in self._names if name.id in counters and _is_read(name) and id(name) not in counted_names
        )
        return any(not self._is_reassigned(name, counting_loops) for name in reads)

    def _is_reassigned(self, read_name: ast.Name, counting_loops: list[ast.For]) -> bool:
        """Whether a statement before a read assigns the variable again, on every path, and no counting loop follows."""
        counts = {id(name) for loop in counting_loops for name in self._names_within([loop.target])}
        for block in self._blocks:
            for position, statement in enumerate(block):
                later_names = {id(name) for name in self._names_within(block[position + 1 :])}
                if (
                    id(read_name) in later_names
                    and counts.isdisjoint(later_names)
                    and read_name.id in _targets(statement)
                ):
                    return True
        return False

    def _assigned_names(self, body: list[ast.stmt]) -> list[str]:
        """The variables assigned by a block, without the counters of loops that do not escape."""
        stores = (name for name in self._names_within(body) if not _is_read(name) and id(name) not in self._counters)
        return list(dict.fromkeys(name.id for name in stores))

    def _live_after(self, body: list[ast.stmt]) -> list[str]:
        """The variables assigned by a branch or an iteration and possibly read after it."""
        inner_names = {id(name) for name in self._names_within(body)}
        outer_reads = {name.id for name in self._names if _is_read(name) and id(name) not in inner_names}
        fresh_names: set[str] = set()  # assigned before the block reads them
        read_names: set[str] = set()
        for statement in body:
            names = self._names_within([statement])
            read_names |= {name.id for name in names if _is_read(name)}
            if isinstance(statement, ast.Assign):
                fresh_names |= {name.id for name in names if not _is_read(name)} - read_names
        return [name for name in self._assigned_names(body) if name not in fresh_names or name in outer_reads]


def _targets(statement: ast.stmt) -> set[str]:
    """The variables assigned by a plain assignment."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _is_read(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)
