"""Kernels of a museum module by name: the correct forms of an op, and the same op with one bug each."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

Kernel = Callable[..., Any]


def kernel_lookup(op: Kernel, forms: Mapping[str, Mapping[str, Any]], bugs: Collection[str]) -> Callable[[str], Kernel]:
    """A module's __getattr__ for its kernels.

    forms: options of the correct kernels, by name.
    bugs: names of the kernels with a bug.
    """

    def find(name: str) -> Kernel:
        if name not in forms and name not in bugs:
            raise AttributeError(f"the museum's {op.__name__} has neither a form nor a bug called {name!r}")
        return partial(op, **forms.get(name, {"bug": name}))

    return find


def bug_names(letter: str, count: int) -> list[str]:
    """The names C1, C2, ..., `count` of them."""
    return [f"{letter}{i}" for i in range(1, count + 1)]
