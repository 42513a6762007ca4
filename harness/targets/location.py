"""The location of a function as data, for another process to import it."""

import ast
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from packproof.adapters.importing import attribute, module_of_file, reason, working_directory
from packproof.adapters.registry import PEERS
from packproof.refs.errors import UsageError


@dataclass(frozen=True)
class Location:
    """A function by module, file and qualified name.

    With both a module and a file, the module is tried first and counts only if it comes from that file.
    """

    module: str
    """Dotted name, or ""."""
    file: str
    """Path of the source, or ""."""
    path: str
    """Attributes from the module to the function, separated by dots."""

    @classmethod
    def parse(cls, target: str) -> "Location":
        """Read "package.module:function", "path/file.py:function", or a peer's name; dots may follow."""
        if target in PEERS:
            PEERS[target].require()
            return cls(PEERS[target].module, "", PEERS[target].function)
        place, _, path = target.rpartition(":")
        if not place or not path:
            raise UsageError(f"target {target!r}; expected package.module:function or path/file.py:function")
        if not place.endswith(".py"):
            return cls(place, "", path)
        file, here = Path(place), working_directory()
        if not here and not file.is_absolute():
            raise UsageError(f"target {target!r}: the working directory is gone; name the file by its whole path")
        file = file.resolve()
        if not file.is_file():
            where = "" if Path(place).is_absolute() else f" in {here[0]}"
            raise UsageError(f"target {target!r}: there is no file {place}{where}")
        return cls("", str(file), path)

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Location | None":
        """The location of `function`, or None if no name leads to it: a closure, a lambda, a wrapper, a function of
        `__main__`.
        """
        name = getattr(function, "__module__", None)
        path = getattr(function, "__qualname__", "")
        module = sys.modules.get(name or "")
        if module is None or name == "__main__" or "<" in path:
            return None
        try:
            found = attribute(module, path)
        except AttributeError:
            return None
        return cls(module.__name__, getattr(module, "__file__", None) or "", path) if found is function else None

    def load(self) -> Callable[..., Any]:
        """Import the function here. Raises UsageError with the reason in one line."""
        found, name = self.find(), f"{self.module or self.file}:{self.path}"
        if isinstance(found, type):
            apply = f"{self.path}.apply, or " if hasattr(found, "apply") and hasattr(found, "backward") else ""
            raise UsageError(
                f"{name} is a class, not a function; name {apply}a function that calls it (`packproof model` checks "
                "an nn.Module as a whole)"
            )
        if not callable(found):
            raise UsageError(f"{name} is of type {type(found).__name__}, not a function")
        return found  # type: ignore[no-any-return]

    def find(self) -> Any:
        """Import the object, of any type. Raises UsageError with the reason in one line."""
        place = self.module or self.file
        try:
            module = self._module()
        except (Exception, SystemExit) as error:
            raise UsageError(f"{place} cannot be imported: {reason(error)}") from error
        try:
            return attribute(module, self.path)
        except AttributeError as error:
            raise UsageError(f"{place} has no {self.path}") from error

    def _module(self) -> ModuleType:
        if self.module:
            try:
                module = importlib.import_module(self.module)
            except ModuleNotFoundError:
                if not self.file:
                    raise
            else:
                if not self.file or getattr(module, "__file__", None) == self.file:
                    return module
        return module_of_file(Path(self.file))


def absent(target: str) -> str:
    """Why no such target exists, without running its code; "" if it exists, or if only a run could tell."""
    if target in PEERS:
        return ""
    place, _, path = target.rpartition(":")
    if place.endswith(".py"):
        file = Path(place)
        if not file.is_file():
            return f"target {target!r}: there is no file {place}"
    else:
        spec = _spec(place)
        if spec is None:
            return f"target {target!r}: there is no module {place}"
        file = Path(spec.origin or "")
    defined = _defined(file)
    name = path.partition(".")[0]
    return "" if defined is None or name in defined else f"target {target!r}: {place} defines no {name}"


def _spec(module: str) -> ModuleSpec | None:
    """Find a module's spec. Unlike `find_spec`, this imports none of its parent packages."""
    found, name, folders = None, "", None
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        found = PathFinder.find_spec(name, folders)
        if found is None:
            return None
        folders = list(found.submodule_search_locations or ())
    return found


def _defined(file: Path) -> set[str] | None:
    """Every name bound in a source file, or None if the source alone does not tell."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.asname or node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    return None if {"*", "__getattr__", "globals"} & names else names
