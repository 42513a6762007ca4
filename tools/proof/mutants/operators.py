"""The mutation operators for Triton kernels: each takes a node of the syntax tree and yields edits of its source.

Two kinds of code stay unchanged. No run on small tensors could show a change of integer widths or of hints to the
compiler. Decorators, signatures, docstrings and assertions compute nothing.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

_HINTS = {"tl.static_assert", "tl.device_assert", "tl.debug_barrier"}
_STRIDES = ("_stride", "_head", "_group")
_COMPARISON_SWAPS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
_ARITHMETIC_SWAPS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
}
_WIDE = {"tl.float32", "tl.float64"}
_WIDENING = {"widen", "operand"}


@dataclass(frozen=True)
class Edit:
    """A replacement of characters in a source."""

    start: int
    """The index of the first replaced character."""
    end: int
    """The index after the last replaced character."""
    new: str
    """The replacement."""


class Text:
    """A source and the positions of its nodes."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0, *accumulate(map(len, self._lines))]

    def _at(self, line: int, column: int) -> int:
        """The character index of a line and a column in bytes, as syntax trees count them."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._at(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.end_lineno, node.end_col_offset)

    def source_of(self, node: ast.expr | ast.stmt) -> str:
        return self.source[self.start(node) : self.end(node)]

    def replace(self, node: ast.expr | ast.stmt, new: str) -> Edit:
        return Edit(self.start(node), self.end(node), new)

    def symbol(self, left_operand: ast.expr, right_operand: ast.expr, symbol: str) -> Edit:
        """The position of an operator between its operands, outside of their parentheses, as an edit to itself."""
        start = self.source.index(symbol, self.end(left_operand), self.start(right_operand))
        return Edit(start, start + len(symbol), symbol)

    def operands(self, node: ast.BinOp, symbol: str) -> tuple[str, str]:
        """Both operands of a binary operator with the parentheses around them."""
        symbol_edit = self.symbol(node.left, node.right, symbol)
        return self.source[self.start(node) : symbol_edit.start].rstrip(), self.source[
            symbol_edit.end : self.end(node)
        ].lstrip()


@dataclass(frozen=True)
class Scope:
    """A function of a kernel."""

    function: ast.FunctionDef
    text: Text

    @property
    def nodes(self) -> Iterator[tuple[ast.AST, range]]:
        """The nodes to change, in source order, each with the lines of its statement."""
        for statement in self.function.body:
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                yield from _nodes_within(statement, range(0))

    @cached_property
    def accumulators(self) -> frozenset[str]:
        """Names of floating-point sums: the variables initialised with tl.zeros."""
        names: set[str] = set()
        for node in ast.walk(self.function):
            if isinstance(node, ast.Assign):
                for target, value in _assignments(node):
                    if isinstance(value, ast.Call) and ast.unparse(value.func) == "tl.zeros":
                        names.add(ast.unparse(target))
        return frozenset(names)

    @cached_property
    def strides(self) -> tuple[str, ...]:
        return tuple(a.arg for a in self.function.args.args if a.arg.endswith(_STRIDES))


def _assignments(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield target, value


def _nodes_within(node: ast.AST, lines: range) -> Iterator[tuple[ast.AST, range]]:
    if isinstance(node, ast.stmt):
        body = getattr(node, "body", None)
        lines = range(node.lineno, body[0].lineno if body else (node.end_lineno or node.lineno) + 1)
    yield node, lines
    if isinstance(node, ast.Call):
        if ast.unparse(node.func) in _HINTS:
            return
        children: Iterator[ast.AST] = iter(
            [node.func, *node.args, *(k.value for k in node.keywords if k.arg == "mask")]
        )
    elif isinstance(node, ast.AnnAssign):
        children = iter([node.value] if node.value else [])
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from _nodes_within(child, lines)


def _callee(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def comparison(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """< becomes <=, == becomes !=, and so on."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISON_SWAPS:
        symbol, replacement = _COMPARISON_SWAPS[type(node.ops[0])]
        symbol_edit = scope.text.symbol(node.left, node.comparators[0], symbol)
        yield Edit(symbol_edit.start, symbol_edit.end, replacement)


def arithmetic(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """+ becomes -, // becomes %, and so on; a minus sign is dropped."""
    text = scope.text
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC_SWAPS:
        symbol, replacement = _ARITHMETIC_SWAPS[type(node.op)]
        symbol_edit = text.symbol(node.left, node.right, symbol)
        yield Edit(symbol_edit.start, symbol_edit.end, replacement)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield text.replace(node, text.source_of(node.operand))
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield text.replace(node, text.source_of(node).replace("+=", "-=", 1))


def term(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A summand or a factor is dropped; += is left out, or becomes =."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
        symbol = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}[type(node.op)]
        left_operand, right_operand = scope.text.operands(node, symbol)
        yield scope.text.replace(node, left_operand)
        if symbol != "-" and not (isinstance(node.left, ast.BinOp) and type(node.left.op) is type(node.op)):
            yield scope.text.replace(
                node, right_operand
            )  # of a longer sum only the first: the others were dropped as right operands
    if isinstance(node, ast.AugAssign):
        yield scope.text.replace(node, "pass")
        yield scope.text.replace(node, f"{scope.text.source_of(node.target)} = {scope.text.source_of(node.value)}")


def constant(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """An integer becomes one more or one less, a float another one."""
    if isinstance(node, ast.Constant):
        if type(node.value) is int:
            yield scope.text.replace(node, str(node.value + 1))
            if node.value > 0:
                yield scope.text.replace(node, str(node.value - 1))
        elif isinstance(node.value, float):
            yield scope.text.replace(node, repr(node.value * (1 + 2**-7) if node.value else 1.0))


def iterations(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A loop ends one iteration sooner or later, or begins one later."""
    if _callee(node) not in ("range", "tl.range", "tl.static_range") or not isinstance(node, ast.Call):
        return
    text, bounds = scope.text, node.args
    step = text.source_of(bounds[2]) if len(bounds) > 2 else "1"
    stop = bounds[0] if len(bounds) == 1 else bounds[1]
    yield text.replace(stop, f"({text.source_of(stop)}) - ({step})")
    yield text.replace(stop, f"({text.source_of(stop)}) + ({step})")
    if len(bounds) > 1:
        yield text.replace(bounds[0], f"({text.source_of(bounds[0])}) + ({step})")


def conjunct(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """One side of & or | is dropped."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        left_operand, right_operand = scope.text.operands(node, "&" if isinstance(node.op, ast.BitAnd) else "|")
        yield scope.text.replace(node, left_operand)
        yield scope.text.replace(node, right_operand)


def branch(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A choice always takes one side; a flag is inverted."""
    text = scope.text
    if isinstance(node, ast.Call) and _callee(node) == "tl.where":
        yield text.replace(node, f"({text.source_of(node.args[1])})")
        yield text.replace(node, f"({text.source_of(node.args[2])})")
    if isinstance(node, ast.IfExp):
        yield text.replace(node, f"({text.source_of(node.body)})")
        yield text.replace(node, f"({text.source_of(node.orelse)})")
    if isinstance(node, ast.If):
        if isinstance(node.test, ast.Name):
            yield text.replace(node.test, f"not {node.test.id}")
        elif isinstance(node.test, ast.UnaryOp):
            yield text.replace(node.test, text.source_of(node.test.operand))


def mask(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A load or a store without its mask."""
    name = _callee(node)
    if not isinstance(node, ast.Call) or name not in ("tl.load", "tl.store"):
        return
    positional = 1 if name == "tl.load" else 2
    if node.args[positional:] or any(k.arg == "mask" for k in node.keywords):
        yield scope.text.replace(node, _call(scope, node, node.args[:positional], without={"mask", "other"}))


def other(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A load without `other=`: its masked lanes are undefined."""
    if isinstance(node, ast.Call) and any(k.arg == "other" for k in node.keywords):
        yield scope.text.replace(node, _call(scope, node, node.args, without={"other"}))


def _call(scope: Scope, node: ast.Call, args: list[ast.expr], without: set[str]) -> str:
    keywords = [f"{k.arg}={scope.text.source_of(k.value)}" for k in node.keywords if k.arg not in without]
    return f"{scope.text.source_of(node.func)}({', '.join([*map(scope.text.source_of, args), *keywords])})"


def precision(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A value is not widened; a summand is rounded to bf16."""
    text = scope.text
    if isinstance(node, ast.Call) and _callee(node) in _WIDENING:
        yield text.replace(node, f"({text.source_of(node.args[0])})")
    if isinstance(node, ast.Call) and _callee(node).endswith(".to") and text.source_of(node.args[0]) in _WIDE:
        yield text.replace(node, text.source[text.start(node) : text.end(node.func) - len(".to")])
    if isinstance(node, ast.AugAssign) and ast.unparse(node.target) in scope.accumulators:
        yield text.replace(node.value, f"({text.source_of(node.value)}).to(tl.bfloat16).to(tl.float32)")


def extremum(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """A minimum becomes a maximum, or one of its sides."""
    name = _callee(node)
    if isinstance(node, ast.Call) and name in ("tl.minimum", "tl.maximum"):
        yield scope.text.replace(node.func, "tl.maximum" if name == "tl.minimum" else "tl.minimum")
        for argument in node.args:
            yield scope.text.replace(node, f"({scope.text.source_of(argument)})")


def lanes(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """tl.arange begins at 1."""
    if isinstance(node, ast.Call) and _callee(node) == "tl.arange":
        yield scope.text.replace(node, f"({scope.text.source_of(node)} + 1)")


def stride(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """The stride of another axis or tensor."""
    names = scope.strides
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names and len(names) > 1:
        yield scope.text.replace(node, names[(names.index(node.id) + 1) % len(names)])


def function(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    """Rounding up becomes rounding down, exp2 becomes exp; a matrix is not transposed, a sum not cumulated."""
    if not isinstance(node, ast.Call):
        return
    text, name = scope.text, _callee(node)
    if name == "tl.cdiv":
        yield text.replace(node, f"({text.source_of(node.args[0])}) // ({text.source_of(node.args[1])})")
    elif name == "tl.exp2":
        yield text.replace(node.func, "tl.exp")
    elif name in ("tl.trans", "tl.abs", "tl.cumsum"):
        yield text.replace(node, f"({text.source_of(node.args[0])})")


Operator = Callable[[ast.AST, Scope], Iterator[Edit]]

OPERATORS: dict[str, Operator] = {
    o.__name__: o
    for o in (
        comparison, arithmetic, term, constant, iterations, conjunct, branch, mask, other, precision, extremum, lanes,
        stride, function,
    )
}  # fmt: skip
