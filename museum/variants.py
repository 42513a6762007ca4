"""How a module of the museum names its kernels: the correct forms of an op, and the same op with one bug each."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from inspect import signature
from typing import Any, TypeVar

Kernel = Callable[..., Any]
F = TypeVar("F", bound=Kernel)


def named(op: Kernel, forms: Mapping[str, Mapping[str, Any]], bugs: Collection[str]) -> Callable[[str], Kernel]:
    """A module's __getattr__: `forms` are the correct ones, by name; any of the `bugs` is planted into the plain op."""

    def find(name: str) -> Kernel:
        if name not in forms and name not in bugs:
            raise AttributeError(f"the museum's {op.__name__} has neither a form nor a bug called {name!r}")
        return partial(op, **forms.get(name, {"bug": name}))

    return find


def numbered(letter: str, last: int) -> list[str]:
    """C1, C2, ... up to the last."""
    return [f"{letter}{i}" for i in range(1, last + 1)]


def called_like(op: Kernel) -> Callable[[F], F]:
    """The decorator of a kernel that hands its options on to an op: its signature is the op's."""

    def named(kernel: F) -> F:
        kernel.__signature__ = signature(op)  # type: ignore[attr-defined]
        return kernel

    return named
