"""Kernels that accept one option, or one optional input, and ignore it: the reference with its default instead."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from packproof.base.axes import parse
from packproof.properties.ops import OPS, Op


def ignorable(op: Op) -> Iterator[str]:
    """The options and optional inputs of an op that change values, not the set of outputs."""
    requests = {*op.on_request.values(), *([op.carry[2]] if op.carry else [])}
    parameters = inspect.signature(op.reference).parameters
    for name in (*op.options, *(name for name, spec in op.inputs.items() if parse(spec).optional)):
        if name not in requests and parameters[name].default is not inspect.Parameter.empty:
            yield name


def ignoring(op: Op, name: str, where: Callable[[dict[str, Any]], bool] = lambda _: True) -> Callable[..., Any]:
    """The reference without an option, at the calls that `where` selects by their arguments, as a fallback would."""
    signature = inspect.signature(op.reference)

    @functools.wraps(op.reference)
    def kernel(*args: Any, **options: Any) -> Any:
        arguments = signature.bind(*args, **options)
        if where(arguments.arguments):
            arguments.arguments[name] = signature.parameters[name].default
        return op.reference(*arguments.args, **arguments.kwargs)

    return kernel


EVERY = [(op, name) for op, declared in OPS.items() for name in ignorable(declared)]
