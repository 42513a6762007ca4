"""Rewrites the Python of a kernel and of its device functions, so that their control flow goes through `control`."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from triton.runtime import interpreter as shipped

from packproof.harness.interpreter.batch import control
from packproof.harness.interpreter.batch.programs import Unsupported
from packproof.harness.interpreter.batch.variables import Variables

Function = Callable[..., Any]

_CONTROL = "__packproof"
_STATEMENTS = (
    *(ast.FunctionDef, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.If, ast.For, ast.While),
    *(ast.Return, ast.Pass, ast.Assert, ast.Break, ast.Continue),
)
_RANGES = {"range", "static_range"}
_SEEN = {"print", "static_print", "device_print", "breakpoint", "set_trace"}

_sources: dict[Function, Function] = {}  # kernel as rewritten by Triton's interpreter -> its original function
_rewritten: dict[Function, Function] = {}
_ordered: dict[Function, bool] = {}


def remember(original: Callable[..., Any]) -> Callable[..., Any]:
    """`InterpretedFunction.rewrite`, with the original function recorded for `source`."""

    def rewrite(self: Any) -> Function:
        function: Function = original(self)
        _sources[function] = self.fn
        return function

    return rewrite


def source(function: Function) -> Function | None:
    """The original function of a kernel rewritten by the interpreter; None if unknown."""
    return _sources.get(function)


def batched(function: Function) -> Function:
    """The version of a kernel or device function for many programs. Raises Unsupported if it cannot be rewritten."""
    if function not in _rewritten:
        try:
            _rewritten[function] = _compiled(function)
        except Unsupported:
            raise
        except Exception as error:  # no source, or source that Triton does not compile either
            raise Unsupported(f"{function} cannot be rewritten: {error}") from error
    return _rewritten[function]


def ordered(function: Function) -> bool:
    """Whether a kernel can show the order of its programs: it uses an atomic operation, prints, or stops in a debugger,
    directly or in a device function.
    """
    if function not in _ordered:
        _ordered[function] = False  # ends the recursion of a function that calls itself
        names = function.__code__.co_names
        found = any(name.startswith("atomic_") or name in _SEEN for name in names)
        _ordered[function] = found or any(ordered(callee.fn) for callee in _callees(function))
    return _ordered[function]


def _callees(function: Function) -> Iterable[Any]:
    names = function.__code__.co_names
    scope = function.__globals__
    found = [scope.get(name) for name in names]
    found += [vars(module).get(name) for module in found if isinstance(module, ModuleType) for name in names]
    return (member for member in found if isinstance(member, shipped.InterpretedFunction))


def _compiled(function: Function) -> Function:
    lines, first = inspect.getsourcelines(function)
    (definition,) = ast.parse(textwrap.dedent("".join(lines))).body
    ast.increment_lineno(definition, first - 1)  # keep line numbers: for tracebacks, and for the coverage of mutants
    for node in ast.walk(definition):
        if isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS):
            raise Unsupported(f"a statement that Triton does not compile: {type(node).__name__.lower()}")
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            raise Unsupported("an assignment that Triton does not compile")
        if isinstance(node, ast.NamedExpr | ast.Lambda | ast.Yield | ast.YieldFrom | ast.Await):
            raise Unsupported(f"an expression that Triton does not compile: {type(node).__name__.lower()}")
    if not isinstance(definition, ast.FunctionDef) or _CONTROL in function.__code__.co_names:
        raise Unsupported("no function")
    definition.decorator_list = []
    _Rewriter(definition).visit(definition)
    # a factory, so that the kernel finds `control` without a name in its module
    (factory,) = ast.parse(f"def make({_CONTROL}):\n    return {function.__name__}").body
    assert isinstance(factory, ast.FunctionDef)
    factory.body.insert(0, definition)
    module = ast.fix_missing_locations(ast.Module(body=[factory], type_ignores=[]))
    scope: dict[str, Any] = {}
    exec(compile(module, inspect.getsourcefile(function) or "<kernel>", "exec"), function.__globals__, scope)
    rewritten: Function = scope["make"](control)
    return rewritten


class _Rewriter(ast.NodeTransformer):
    """Sends if, for, while, and, or, not, conditional expressions and early returns of a function through `control`."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self._function = function
        self._variables = Variables(function)
        self._count = 0
        self._nested = 0

    def _new(self, kind: str) -> str:
        self._count += 1
        return f"__{kind}{self._count}"

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        if node is not self._function:
            raise Unsupported("a function within a function")
        node.body = self._block(node.body)
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        if len(node.targets) > 1:
            raise Unsupported("several targets of one assignment")
        value = node.value
        if isinstance(value, ast.IfExp):  # both values become tensors: different Python values cannot be merged
            value.body, value.orelse = (_call("to_tensor", v, ast.Constant(False)) for v in (value.body, value.orelse))
        node.value = _call("to_tensor", self.visit(value), ast.Constant(False))
        return node

    def visit_If(self, node: ast.If) -> Any:
        case, before, then = self._new("case"), self._new("before"), self._new("then")
        names = self._variables.merged[id(node)]
        ends = _ends(node)
        first_body = node.body[:-1] if ends else node.body
        jumps = _jumps(first_body + node.orelse)
        test = self.visit(node.test)
        body, orelse = self._inner(first_body), self._inner(node.orelse)
        start = _code(f"{case} = {_CONTROL}.branch(None, {jumps}, {ends})\n{before} = {case}.split and {_taken(names)}")
        _argument(start[0], test)
        first = _code(f"if {case}.then:\n    pass")[0]
        assert isinstance(first, ast.If)
        if ends:
            first.body = [*body, *_code(f"if not {case}.split:\n    return")]
            restored = f"    {_target(names)} = {before}\n" if names else ""
            return [*start, first, *_code(f"if {case}.split:\n{restored}    if {case}.leave():\n        return")]
        first.body = body
        assign = f"{then} = {_taken(names)}\n    {_target(names)} = {before}\n    " if names else f"{then} = ()\n    "
        middle = _code(f"if {case}.split:\n    {assign}{case}.turn()")
        second = _code(f"if {case}.orelse:\n    pass") if orelse else []
        for other in second:
            assert isinstance(other, ast.If)
            other.body = orelse
        merge = f"{_target(names)} = {case}.end({then}, {_taken(names)})" if names else f"{case}.end()"
        return [*start, first, *middle, *second, *_code(f"if {case}.split:\n    {merge}")]

    def visit_For(self, node: ast.For) -> Any:
        if node.orelse:
            raise Unsupported("a loop with else")
        call = node.iter
        name = getattr(call.func, "attr", getattr(call.func, "id", None)) if isinstance(call, ast.Call) else None
        fixed = _jumps(node.body) or id(node) in self._variables.escaping
        names, body = self._variables.merged[id(node)], self._inner(node.body)
        if name not in _RANGES:
            node.iter, node.body = self.visit(call), body
            return node
        assert isinstance(call, ast.Call)
        if any(isinstance(argument, ast.Starred) for argument in call.args) or not isinstance(node.target, ast.Name):
            raise Unsupported("a range with * or several counters")
        loop = self._new("loop")
        (start,) = _code(f"{loop} = {_CONTROL}.loop({fixed})")
        assert isinstance(start, ast.Assign)
        assert isinstance(start.value, ast.Call)
        parts = ("stop",) if len(call.args) == 1 else ("start", "stop", "step")
        known = {"start": ast.Constant(0), **dict(zip(parts, call.args, strict=False))}
        known |= {_ARGUMENTS.get(str(k.arg), str(k.arg)): k.value for k in call.keywords}
        if "stop" not in known:
            raise Unsupported("a range without an end")
        start.value.args += [self.visit(known[part]) for part in ("start", "stop")]
        start.value.keywords = [ast.keyword("step", self.visit(known["step"]))] if "step" in known else []
        node.iter = ast.Name(loop, ast.Load())
        node.body = self._iteration(loop, names, body)
        return [start, node, *_code(f"{loop}.end()")]

    def visit_While(self, node: ast.While) -> Any:
        if node.orelse:
            raise Unsupported("a loop with else")
        loop, names = self._new("loop"), self._variables.merged[id(node)]
        (start,) = _code(f"{loop} = {_CONTROL}.while_loop({_jumps(node.body)})")
        test, body = self.visit(node.test), self._inner(node.body)
        node.test = ast.Call(ast.Attribute(ast.Name(loop, ast.Load()), "test", ast.Load()), [test], [])
        node.body = self._iteration(loop, names, body)
        return [start, node, *_code(f"{loop}.end()")]

    def visit_Return(self, node: ast.Return) -> Any:
        self.generic_visit(node)
        return [*_code(f"{_CONTROL}.leave()"), node] if self._nested else node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        return _call("choose", self.visit(node.test), _late(self.visit(node.body)), _late(self.visit(node.orelse)))

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        first, *rest = [self.visit(value) for value in node.values]
        return _call("all_of" if isinstance(node.op, ast.And) else "any_of", first, *map(_late, rest))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        node.operand = self.visit(node.operand)
        return _call("negation", node.operand) if isinstance(node.op, ast.Not) else node

    def _inner(self, body: list[ast.stmt]) -> list[ast.stmt]:
        self._nested += 1
        block = self._block(body)
        self._nested -= 1
        return block

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        visited = [self.visit(statement) for statement in body]
        return [part for v in visited for part in (v if isinstance(v, list) else [v])]

    def _iteration(self, loop: str, names: list[str], body: list[ast.stmt]) -> list[ast.stmt]:
        """The body of a loop, followed by a merge: inactive programs keep their variables."""
        if not names:
            return body
        before = self._new("before")
        merge = f"if {loop}.split:\n    {_target(names)} = {loop}.merge({before}, {_taken(names)})"
        return [*_code(f"{before} = {loop}.split and {_taken(names)}"), *body, *_code(merge)]


_ARGUMENTS = {"arg1": "start", "arg2": "stop", "end": "stop"}


def _code(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def _call(name: str, *arguments: Any) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(_CONTROL, ast.Load()), name, ast.Load()), list(arguments), [])


def _late(expression: Any) -> ast.Lambda:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(args=nothing, body=expression)


def _argument(statement: ast.stmt, value: ast.expr) -> None:
    """Set the first argument of `x = call(None, ...)`."""
    assert isinstance(statement, ast.Assign)
    assert isinstance(statement.value, ast.Call)
    statement.value.args[0] = value


def _taken(names: list[str]) -> str:
    return f"{_CONTROL}.snapshot(locals(), {tuple(names)!r})" if names else "()"


def _target(names: list[str]) -> str:
    return "(" + "".join(f"{name}, " for name in names) + ")"


def _ends(statement: ast.stmt) -> bool:
    """Whether a statement is `if ...: ...; return` without a value: its programs leave the function."""
    if not isinstance(statement, ast.If) or statement.orelse:
        return False
    last = statement.body[-1]
    return isinstance(last, ast.Return) and last.value is None


def _jumps(body: list[ast.stmt], *, breaks: bool = True) -> bool:
    """Whether a block returns other than at the end of an if statement.

    breaks: whether `break` and `continue` of an enclosing loop count too.
    """
    for statement in body:
        if isinstance(statement, ast.Return) or (breaks and isinstance(statement, ast.Break | ast.Continue)):
            return True
        if isinstance(statement, ast.If):
            inner = statement.body[:-1] if _ends(statement) else statement.body + statement.orelse
            if _jumps(inner, breaks=breaks):
                return True
        if isinstance(statement, ast.For | ast.While) and _jumps(statement.body, breaks=False):
            return True
    return False
