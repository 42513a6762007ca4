"""The parameters of kernels, inspected once. As shipped, each launch inspects the kernel's signature twice."""

import inspect
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

from triton.runtime import interpreter as shipped

from packproof.interpreter.patch import replace


def repair() -> None:
    """Replace the interpreter's reference to the module `inspect`."""
    replacements = {"getfullargspec": full_arg_spec, "getcallargs": call_arguments}
    replace(shipped, "inspect", lambda original: SimpleNamespace(**{**vars(original), **replacements}))


@cache
def full_arg_spec(function: Callable[..., Any]) -> inspect.FullArgSpec:
    """`inspect.getfullargspec`, cached."""
    return inspect.getfullargspec(function)


def call_arguments(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """`inspect.getcallargs`, faster: the arguments by name. Raises the same TypeError."""
    spec = full_arg_spec(function)
    parameters, positional = spec.args, spec.args[: len(args)]
    is_simple = (
        len(args) <= len(parameters) and kwargs.keys() <= set(parameters) and kwargs.keys().isdisjoint(positional)
    )
    if is_simple and not (spec.varargs or spec.varkw or spec.kwonlyargs):
        arguments = {**dict(zip(positional, args, strict=True)), **kwargs}
        defaults = dict(zip(reversed(parameters), reversed(spec.defaults or ()), strict=False))
        arguments |= {name: defaults[name] for name in parameters if name not in arguments and name in defaults}
        if len(arguments) == len(parameters):
            return arguments
    return inspect.getcallargs(function, *args, **kwargs)
