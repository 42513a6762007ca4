"""The parameters of kernels, inspected once. As shipped, each launch inspects the kernel's signature twice."""

import inspect
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

from triton.runtime import interpreter as shipped

from packproof.harness.interpreter.patch import replace


def repair() -> None:
    """Replace the interpreter's reference to the module `inspect`."""
    known = {"getfullargspec": specification, "getcallargs": bound}
    replace(shipped, "inspect", lambda original: SimpleNamespace(**{**vars(original), **known}))


@cache
def specification(function: Callable[..., Any]) -> inspect.FullArgSpec:
    """`inspect.getfullargspec`, cached."""
    return inspect.getfullargspec(function)


def bound(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """`inspect.getcallargs`, faster: the arguments by name. Raises the same TypeError."""
    found = specification(function)
    names, by_place = found.args, found.args[: len(args)]
    fits = len(args) <= len(names) and kwargs.keys() <= set(names) and kwargs.keys().isdisjoint(by_place)
    if fits and not (found.varargs or found.varkw or found.kwonlyargs):
        given = {**dict(zip(by_place, args, strict=True)), **kwargs}
        defaults = dict(zip(reversed(names), reversed(found.defaults or ()), strict=False))
        given |= {name: defaults[name] for name in names if name not in given and name in defaults}
        if len(given) == len(names):
            return given
    return inspect.getcallargs(function, *args, **kwargs)
