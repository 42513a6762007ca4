"""Rewrites the Python of a kernel and of its device functions, so that their control flow goes through `control`."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from triton.runtime import interpreter as shipped

from packproof.interpreter.batch import control
from packproof.interpreter.batch.programs import Unsupported
from packproof.interpreter.batch.variables import Variables
from packproof.interpreter.python_calls import translate

Function = Callable[..., Any]

_CONTROL = "__packproof"
_STATEMENTS = (
    *(ast.FunctionDef, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.If, ast.For, ast.While),
    *(ast.Return, ast.Pass, ast.Assert, ast.Break, ast.Continue),
)
_RANGES = {"range", "static_range"}
_OUTPUT_FUNCTIONS = {"print", "static_print", "device_print", "breakpoint", "set_trace"}

_sources: dict[Function, Function] = {}  # kernel as rewritten by Triton's interpreter -> its original function
_batch_functions: dict[Function, Function] = {}
_order_cache: dict[Function, bool] = {}


def record_source(original: Callable[..., Any]) -> Callable[..., Any]:
    """`InterpretedFunction.rewrite`, with the original function recorded for `source`."""

    def rewrite(self: Any) -> Function:
        function: Function = original(self)
        _sources[function] = self.fn
        return function

    return rewrite


def source(function: Function) -> Function | None:
    """The original function of a kernel rewritten by the interpreter; None if unknown."""
    return _sources.get(function)


def batch_function(function: Function) -> Function:
    """The version of a kernel or device function for many programs. Raises Unsupported if it cannot be rewritten."""
    if function not in _batch_functions:
        try:
            _batch_functions[function] = _compile_batch_function(function)
        except Unsupported:
            raise
        except Exception as error:  # no source, or source that Triton does not compile either
            raise Unsupported(f"{function} cannot be rewritten: {error}") from error
    return _batch_functions[function]


def shows_program_order(function: Function) -> bool:
    """Whether a kernel can show the order of its programs: it uses an atomic operation, prints, or stops in a debugger,
    directly or in a device function.
    """
    if function not in _order_cache:
        _order_cache[function] = False  # ends the recursion of a function that calls itself
        names = function.__code__.co_names
        has_output = any(name.startswith("atomic_") or name in _OUTPUT_FUNCTIONS for name in names)
        _order_cache[function] = has_output or any(shows_program_order(callee.fn) for callee in _callees(function))
    return _order_cache[function]


def _callees(function: Function) -> Iterable[Any]:
    names = function.__code__.co_names
    scope = function.__globals__
    members = [scope.get(name) for name in names]
    members += [vars(module).get(name) for module in members if isinstance(module, ModuleType) for name in names]
    return (member for member in members if isinstance(member, shipped.InterpretedFunction))


def _compile_batch_function(function: Function) -> Function:
    lines, first_line = inspect.getsourcelines(function)
    (definition,) = translate(ast.parse(textwrap.dedent("".join(lines))), function).body
    ast.increment_lineno(
        definition, first_line - 1
    )  # keep line numbers: for tracebacks, and for the coverage of mutants
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
        self._depth = 0

    def _fresh_name(self, kind: str) -> str:
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
            value.body, value.orelse = (
                _control_call("to_tensor", v, ast.Constant(False)) for v in (value.body, value.orelse)
            )
        node.value = _control_call("to_tensor", self.visit(value), ast.Constant(False))
        return node

    def visit_If(self, node: ast.If) -> Any:
        case, before, then = self._fresh_name("case"), self._fresh_name("before"), self._fresh_name("then")
        names = self._variables.merged_names[id(node)]
        ends = _ends_with_return(node)
        then_body = node.body[:-1] if ends else node.body
        jumps = _has_jump(then_body + node.orelse)
        test = self.visit(node.test)
        body, orelse = self._nested_block(then_body), self._nested_block(node.orelse)
        start = _parse(
            f"{case} = {_CONTROL}.branch(None, {jumps}, {ends})\n{before} = {case}.split and {_snapshot_code(names)}"
        )
        _set_first_argument(start[0], test)
        then_if = _parse(f"if {case}.then:\n    pass")[0]
        assert isinstance(then_if, ast.If)
        if ends:
            then_if.body = [*body, *_parse(f"if not {case}.split:\n    return")]
            restore = f"    {_target_code(names)} = {before}\n" if names else ""
            return [*start, then_if, *_parse(f"if {case}.split:\n{restore}    if {case}.leave():\n        return")]
        then_if.body = body
        assign = (
            f"{then} = {_snapshot_code(names)}\n    {_target_code(names)} = {before}\n    "
            if names
            else f"{then} = ()\n    "
        )
        middle = _parse(f"if {case}.split:\n    {assign}{case}.turn()")
        orelse_ifs = _parse(f"if {case}.orelse:\n    pass") if orelse else []
        for orelse_if in orelse_ifs:
            assert isinstance(orelse_if, ast.If)
            orelse_if.body = orelse
        merge = f"{_target_code(names)} = {case}.end({then}, {_snapshot_code(names)})" if names else f"{case}.end()"
        return [*start, then_if, *middle, *orelse_ifs, *_parse(f"if {case}.split:\n    {merge}")]

    def visit_For(self, node: ast.For) -> Any:
        if node.orelse:
            raise Unsupported("a loop with else")
        call = node.iter
        name = getattr(call.func, "attr", getattr(call.func, "id", None)) if isinstance(call, ast.Call) else None
        fixed = _has_jump(node.body) or id(node) in self._variables.escaping_loops
        names, body = self._variables.merged_names[id(node)], self._nested_block(node.body)
        if name not in _RANGES:
            node.iter, node.body = self.visit(call), body
            return node
        assert isinstance(call, ast.Call)
        if any(isinstance(argument, ast.Starred) for argument in call.args) or not isinstance(node.target, ast.Name):
            raise Unsupported("a range with * or several counters")
        loop = self._fresh_name("loop")
        (start,) = _parse(f"{loop} = {_CONTROL}.loop({fixed})")
        assert isinstance(start, ast.Assign)
        assert isinstance(start.value, ast.Call)
        parts = ("stop",) if len(call.args) == 1 else ("start", "stop", "step")
        range_arguments = {"start": ast.Constant(0), **dict(zip(parts, call.args, strict=False))}
        range_arguments |= {_ARGUMENTS.get(str(k.arg), str(k.arg)): k.value for k in call.keywords}
        if "stop" not in range_arguments:
            raise Unsupported("a range without an end")
        start.value.args += [self.visit(range_arguments[part]) for part in ("start", "stop")]
        start.value.keywords = (
            [ast.keyword("step", self.visit(range_arguments["step"]))] if "step" in range_arguments else []
        )
        node.iter = ast.Name(loop, ast.Load())
        node.body = self._iteration(loop, names, body)
        return [start, node, *_parse(f"{loop}.end()")]

    def visit_While(self, node: ast.While) -> Any:
        if node.orelse:
            raise Unsupported("a loop with else")
        loop, names = self._fresh_name("loop"), self._variables.merged_names[id(node)]
        (start,) = _parse(f"{loop} = {_CONTROL}.while_loop({_has_jump(node.body)})")
        test, body = self.visit(node.test), self._nested_block(node.body)
        node.test = ast.Call(ast.Attribute(ast.Name(loop, ast.Load()), "test", ast.Load()), [test], [])
        node.body = self._iteration(loop, names, body)
        return [start, node, *_parse(f"{loop}.end()")]

    def visit_Return(self, node: ast.Return) -> Any:
        self.generic_visit(node)
        return [*_parse(f"{_CONTROL}.leave()"), node] if self._depth else node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        return _control_call(
            "choose", self.visit(node.test), _thunk(self.visit(node.body)), _thunk(self.visit(node.orelse))
        )

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        first_operand, *later_operands = [self.visit(value) for value in node.values]
        return _control_call(
            "logical_and" if isinstance(node.op, ast.And) else "logical_or", first_operand, *map(_thunk, later_operands)
        )

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        node.operand = self.visit(node.operand)
        return _control_call("logical_not", node.operand) if isinstance(node.op, ast.Not) else node

    def _nested_block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        self._depth += 1
        block = self._block(body)
        self._depth -= 1
        return block

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        results = [self.visit(statement) for statement in body]
        return [part for v in results for part in (v if isinstance(v, list) else [v])]

    def _iteration(self, loop: str, names: list[str], body: list[ast.stmt]) -> list[ast.stmt]:
        """The body of a loop, followed by a merge: inactive programs keep their variables."""
        if not names:
            return body
        before = self._fresh_name("before")
        merge = f"if {loop}.split:\n    {_target_code(names)} = {loop}.merge({before}, {_snapshot_code(names)})"
        return [*_parse(f"{before} = {loop}.split and {_snapshot_code(names)}"), *body, *_parse(merge)]


_ARGUMENTS = {"arg1": "start", "arg2": "stop", "end": "stop"}


def _parse(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def _control_call(name: str, *arguments: Any) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(_CONTROL, ast.Load()), name, ast.Load()), list(arguments), [])


def _thunk(expression: Any) -> ast.Lambda:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(args=nothing, body=expression)


def _set_first_argument(statement: ast.stmt, value: ast.expr) -> None:
    """Set the first argument of `x = call(None, ...)`."""
    assert isinstance(statement, ast.Assign)
    assert isinstance(statement.value, ast.Call)
    statement.value.args[0] = value


def _snapshot_code(names: list[str]) -> str:
    return f"{_CONTROL}.snapshot(locals(), {tuple(names)!r})" if names else "()"


def _target_code(names: list[str]) -> str:
    return "(" + "".join(f"{name}, " for name in names) + ")"


def _ends_with_return(statement: ast.stmt) -> bool:
    """Whether a statement is `if ...: ...; return` without a value: its programs leave the function."""
    if not isinstance(statement, ast.If) or statement.orelse:
        return False
    last_statement = statement.body[-1]
    return isinstance(last_statement, ast.Return) and last_statement.value is None


def _has_jump(body: list[ast.stmt], *, breaks: bool = True) -> bool:
    """Whether a block returns other than at the end of an if statement.

    breaks: whether `break` and `continue` of an enclosing loop count too.
    """
    for statement in body:
        if isinstance(statement, ast.Return) or (breaks and isinstance(statement, ast.Break | ast.Continue)):
            return True
        if isinstance(statement, ast.If):
            nested_body = statement.body[:-1] if _ends_with_return(statement) else statement.body + statement.orelse
            if _has_jump(nested_body, breaks=breaks):
                return True
        if isinstance(statement, ast.For | ast.While) and _has_jump(statement.body, breaks=False):
            return True
    return False
