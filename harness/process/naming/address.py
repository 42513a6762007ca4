"""The address of an object that a caller passed: the text by which another process finds it."""

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from packproof.base.importing import working_directory
from packproof.harness.process.naming.location import Location


def kernel_address(kernel: str | Callable[..., Any]) -> str:
    """The address of a kernel. Without one, a text that tells it from other kernels: "module:make.<locals>.conv"."""
    if isinstance(kernel, str):
        return kernel
    if found_address := address(kernel):
        return found_address
    if isinstance(kernel, functools.partial):
        source, _, name = kernel_address(kernel.func).rpartition(":")
        return f"{source}:partial({name})"
    kind = type(kernel)
    module = str(getattr(kernel, "__module__", kind.__module__))
    source = _source(sys.modules[module]) if module in sys.modules else ""
    return f"{source or module}:{getattr(kernel, '__qualname__', f'{kind.__qualname__}()')}"


def address(value: Any) -> str:
    """The address of a function, class or another object, as "path/file.py:name" or "package.module:name".

    "" for an object without a name at the top level of a module or a file.
    """
    location = Location.from_function(value) if hasattr(value, "__qualname__") else None
    for module in [sys.modules[location.module]] if location else _modules_with(value):
        if source := _source(module):
            return f"{source}:{location.qualname if location else _name_in(module, value)}"
    return ""


def _modules_with(value: Any) -> Iterator[ModuleType]:
    """The modules with a name for an object, that of the object or its type first."""
    names = dict.fromkeys([getattr(value, "__module__", ""), *sys.modules])
    for module in [sys.modules[name] for name in names if name in sys.modules]:
        if isinstance(module, ModuleType) and _name_in(module, value):
            yield module


def _name_in(module: ModuleType, value: Any) -> str:
    """The name of an object in a module, "" if it has none but those of a notebook's results, such as _12."""
    return next((name for name, other in vars(module).items() if other is value and name.strip("_0123456789")), "")


def _source(module: ModuleType) -> str:
    """The name of a module, or the path of its file where the name would not be found from the current folder.

    "" for a session or a notebook.
    """
    name, file = module.__name__, Path(getattr(module, "__file__", None) or "")
    if name == "__main__":
        spec = getattr(module, "__spec__", None)
        name = spec.name if spec else ""  # of `python -m`; a script has a file alone
    if "." in name or file.suffix != ".py" or "site-packages" in file.parts:
        return name
    for folder in working_directory():
        if file.is_relative_to(folder) and not (name and file.parent == folder):
            return str(file.relative_to(folder))
    return name or str(file)
