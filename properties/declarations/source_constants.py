"""The integers in a kernel's source: tile sizes, table sizes, limits of a model. Kernels change their path there.

The syntax trees of the function and of the functions it uses are read, and their names looked up as they are bound.
Nothing of the kernel runs: no property, no `__getattr__`. Functions are followed into modules beside the kernel's own.
"""

import ast
import dataclasses
import functools
import inspect
import operator
import textwrap
import time
import types
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

SMALLEST, LARGEST = 17, 131_072  # golden layouts go past fewer; more tokens are a case of `size`
MAX_CONSTANTS = 256
_SECONDS, _MAX_FUNCTIONS = 1.0, 200
_UNKNOWN = object()
_WRAPPED = ("__wrapped__", "fn", "target", "func", "__func__")  # a decorator's, Triton's, an adapter's, a partial's
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Pow: operator.pow,
}
_NARROW_INTEGERS = {"int8": 1 << 7, "uint8": 1 << 8, "int16": 1 << 15, "uint16": 1 << 16}
_POWERS = (ast.LShift, ast.RShift, ast.Pow)  # their right operand is no size
_LARGEST_OPERAND = 1 << 32
_LARGEST_EXPONENT = 32


def source_constants(function: Callable[..., Any]) -> list[int]:
    """The integers from SMALLEST to LARGEST in the source of a function, in order; at most a second's worth."""
    reader = _Reader(function)
    constants = sorted(n for n in reader.constants() if SMALLEST <= n <= LARGEST)
    return constants[:MAX_CONSTANTS]


@dataclasses.dataclass(frozen=True)
class _Scope:
    """The names of a function, as they are bound."""

    local: dict[str, Any]
    """Defaults of parameters, variables of enclosing functions, and plain assignments."""
    module: Mapping[str, Any]
    """Globals."""

    def value(self, node: ast.AST) -> Any:
        """The value of an expression, or _UNKNOWN."""
        value = _UNKNOWN
        match node:
            case ast.Constant(value=literal):
                value = literal
            case ast.Name(id=name):
                value = self.local.get(name, self.module.get(name, _UNKNOWN))
            case ast.Attribute(value=owner, attr=name):
                value = _attribute(self.value(owner), name)
            case ast.Subscript(value=owner, slice=key):
                value = _item(self.value(owner), self.value(key))
            case ast.BinOp(left=left, op=kind, right=right):
                value = _result(type(kind), _integer(self.value(left)), _integer(self.value(right)))
        return value


class _Reader:
    """Reads a kernel's functions, each once."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self._pending: list[tuple[Any, Any]] = [(kernel, None)]
        self._queued: dict[int, Any] = {id(kernel): kernel}  # by identity, and alive: an identity is not used again
        self._seen: set[int] = set()
        self._constants: set[int] = set()
        self._folder: Path | None = None
        self._is_file_beside = functools.cache(self._has_folder)  # a class of torch has hundreds of functions

    def constants(self) -> set[int]:
        """All integers, as far as there is time."""
        deadline, n_functions = time.monotonic() + _SECONDS, 0
        while self._pending and n_functions < _MAX_FUNCTIONS and time.monotonic() < deadline:
            for function, owner in _functions(*self._pending.pop(0)):
                if id(function) not in self._seen and self._is_file_beside(function.__code__.co_filename):
                    self._seen.add(id(function))
                    self._read(function, owner)
                    n_functions += 1
        return self._constants

    def _has_folder(self, file: str) -> bool:
        """Whether a file is in the folder of the kernel's, or below it."""
        path = Path(file)
        if self._folder is None:  # the kernel's own; a module among installed packages has no neighbours
            self._folder = path if path.parent.name == "site-packages" else path.parent
        return self._folder in (path, *path.parents)

    def _read(self, function: types.FunctionType, owner: Any) -> None:
        """Note the integers of a function, and the functions that it uses.

        owner: the object bound to its first parameter, or None.
        """
        scope = _Scope(_bound_names(function, owner), function.__globals__)
        for value in scope.local.values():
            self._note(value)
        tree = _syntax_tree(function)
        if tree is None:
            for value in _literals(function.__code__):
                self._note(value)
            return
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=expression):
                    if (value := scope.value(expression)) is not _UNKNOWN:
                        scope.local.setdefault(name, value)
        exponents = {n.right for n in ast.walk(tree) if isinstance(n, ast.BinOp) and isinstance(n.op, _POWERS)}
        for node in ast.walk(tree):
            if isinstance(node, ast.expr) and node not in exponents:
                self._note(scope.value(node))

    def _note(self, value: Any) -> None:
        if (number := _integer(value)) is not None:
            self._constants.add(number)
        elif id(value) not in self._queued and (callable(value) or _static(value, "fn") is not None):
            self._queued[id(value)] = value  # an autotuned Triton kernel, with its `fn`, cannot be called
            self._pending.append((value, None))
            for meta_parameter in _meta_parameters(value):
                self._note(meta_parameter)


def _meta_parameters(kernel: Any) -> Iterator[Any]:
    """The values in the configurations of an autotuned Triton kernel, and the functions that a heuristic has for them.

    A kernel may have both decorators, in any order.
    """
    configurations, functions = _static(kernel, "configs"), _static(kernel, "values")
    for configuration in configurations if isinstance(configurations, list | tuple) else ():
        arguments = _static(configuration, "kwargs")
        yield from arguments.values() if isinstance(arguments, dict) else ()
    yield from filter(callable, functions.values() if isinstance(functions, dict) else ())
    if (decorated := _static(kernel, "fn")) is not None:
        yield from _meta_parameters(decorated)


def _functions(value: Any, owner: Any) -> Iterator[tuple[types.FunctionType, Any]]:
    """The functions of a callable object, each with the object bound to its first parameter, or None."""
    if isinstance(value, types.MethodType):
        yield from _functions(value.__func__, value.__self__)
    elif isinstance(value, types.FunctionType):
        yield value, owner
        if (wrapped := value.__dict__.get("__wrapped__")) is not None:
            yield from _functions(wrapped, owner)
    elif isinstance(value, functools.partial):
        yield from _functions(value.func, owner)
    elif isinstance(value, type):
        for member in chain.from_iterable(vars(base).values() for base in value.__mro__):
            function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if isinstance(function, types.FunctionType):
                yield function, owner
    else:
        for name in _WRAPPED:
            if (wrapped := _static(value, name)) is not None and wrapped is not value:
                yield from _functions(wrapped, owner)
        yield from _functions(type(value), value)


def _bound_names(function: types.FunctionType, owner: Any) -> dict[str, Any]:
    """Defaults by parameter, and the variables of enclosing functions."""
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    names = dict(zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True))
    names |= function.__kwdefaults__ or {}
    if owner is not None and parameters:
        names[parameters[0]] = owner
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # an empty one is of a variable not assigned yet
            names[name] = cell.cell_contents
    return names


def _syntax_tree(function: types.FunctionType) -> ast.AST | None:
    """The syntax tree of a function; None where its source is not at hand, as of a lambda inside a line."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None


def _literals(code: types.CodeType) -> Iterator[Any]:
    """The constants of compiled code and of the functions in it."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _literals(constant)
        else:
            yield constant


def _integer(value: Any) -> int | None:
    """The integer of a value or of Triton's constexpr; of a dtype of torch or Triton, the first that it cannot hold."""
    if type(value) is int:
        return value
    if type(value).__name__ == "dtype":
        return _NARROW_INTEGERS.get(str(value).rpartition(".")[2])
    constant = _static(value, "value") if type(value).__name__ == "constexpr" else None
    return constant if type(constant) is int else None


def _static(owner: Any, name: str) -> Any:
    """An attribute in the object's own dictionary, or None."""
    try:
        return object.__getattribute__(owner, "__dict__").get(name)
    except AttributeError:
        return None


def _attribute(owner: Any, name: str) -> Any:
    """An attribute of a module, a class or an object, without running code of theirs."""
    if owner is _UNKNOWN:
        return _UNKNOWN
    if isinstance(owner, types.ModuleType):
        return vars(owner).get(name, _UNKNOWN)
    value = inspect.getattr_static(owner, name, _UNKNOWN)
    if isinstance(value, types.MemberDescriptorType) and not isinstance(owner, type):  # of __slots__
        return value.__get__(owner)
    if isinstance(owner, tuple) and name in getattr(type(owner), "_fields", ()):
        return owner[type(owner)._fields.index(name)]  # type: ignore[attr-defined]
    return (
        types.MethodType(value, owner)
        if isinstance(value, types.FunctionType) and not isinstance(owner, type)
        else value
    )


def _item(owner: Any, key: Any) -> Any:
    if type(owner) is dict and isinstance(key, str | int):
        return owner.get(key, _UNKNOWN)
    if type(owner) in (list, tuple) and type(key) is int and -len(owner) <= key < len(owner):
        return owner[key]
    return _UNKNOWN


def _result(kind: type[ast.operator], left: int | None, right: int | None) -> Any:
    if left is None or right is None or kind not in _OPERATORS or max(abs(left), abs(right)) > _LARGEST_OPERAND:
        return _UNKNOWN
    if kind in _POWERS and not 0 <= right <= _LARGEST_EXPONENT:
        return _UNKNOWN
    return _UNKNOWN if kind in (ast.FloorDiv, ast.Mod) and right == 0 else _OPERATORS[kind](left, right)
