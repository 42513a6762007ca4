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

from packproof.adapters.peers import PEERS
from packproof.base.errors import UsageError
from packproof.base.importing import load_module, one_line_reason, resolve_attribute, working_directory


@dataclass(frozen=True)
class Location:
    """A function by module, file and qualified name.

    With both a module and a file, the module is tried first and counts only if it comes from that file.
    """

    module: str
    """Dotted name, or ""."""
    file: str
    """Path of the source, or ""."""
    qualname: str
    """Attributes from the module to the function, separated by dots."""

    @classmethod
    def parse(cls, target: str) -> "Location":
        """Read "package.module:function", "path/file.py:function", or a peer's name; dots may follow."""
        if target in PEERS:
            PEERS[target].require()
            return cls(PEERS[target].module, "", PEERS[target].function)
        source, _, qualname = target.rpartition(":")
        if not source or not qualname:
            raise UsageError(f"target {target!r}; expected package.module:function or path/file.py:function")
        if not source.endswith(".py"):
            return cls(source, "", qualname)
        file, cwd = Path(source), working_directory()
        if not cwd and not file.is_absolute():
            raise UsageError(f"target {target!r}: the working directory is gone; name the file by its whole path")
        file = file.resolve()
        if not file.is_file():
            folder_text = "" if Path(source).is_absolute() else f" in {cwd[0]}"
            raise UsageError(f"target {target!r}: there is no file {source}{folder_text}")
        return cls("", str(file), qualname)

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> "Location | None":
        """The location of `function`, or None if no name leads to it: a closure, a lambda, a wrapper, a function of
        `__main__`.
        """
        name = getattr(function, "__module__", None)
        qualname = getattr(function, "__qualname__", "")
        module = sys.modules.get(name or "")
        if module is None or name == "__main__" or "<" in qualname:
            return None
        try:
            candidate = resolve_attribute(module, qualname)
        except AttributeError:
            return None
        return (
            cls(module.__name__, getattr(module, "__file__", None) or "", qualname) if candidate is function else None
        )

    def load(self) -> Callable[..., Any]:
        """Import the function here. Raises UsageError with the reason in one line."""
        target, name = self.find(), f"{self.module or self.file}:{self.qualname}"
        if isinstance(target, type):
            apply = f"{self.qualname}.apply, or " if hasattr(target, "apply") and hasattr(target, "backward") else ""
            raise UsageError(
                f"{name} is a class, not a function; name {apply}a function that calls it (`packproof model` checks "
                "an nn.Module as a whole)"
            )
        if not callable(target):
            raise UsageError(f"{name} is of type {type(target).__name__}, not a function")
        return target  # type: ignore[no-any-return]

    def find(self) -> Any:
        """Import the object, of any type. Raises UsageError with the reason in one line."""
        source = self.module or self.file
        try:
            module = self._module()
        except (Exception, SystemExit) as error:
            raise UsageError(f"{source} cannot be imported: {one_line_reason(error)}") from error
        try:
            return resolve_attribute(module, self.qualname)
        except AttributeError as error:
            raise UsageError(f"{source} has no {self.qualname}") from error

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
        return load_module(Path(self.file))


def missing_target_reason(target: str) -> str:
    """Why no such target exists, without running its code; "" if it exists, or if only a run could tell."""
    if target in PEERS:
        return ""
    source, _, qualname = target.rpartition(":")
    if source.endswith(".py"):
        file = Path(source)
        if not file.is_file():
            return f"target {target!r}: there is no file {source}"
    else:
        spec = _find_spec(source)
        if spec is None:
            return f"target {target!r}: there is no module {source}"
        file = Path(spec.origin or "")
    defined_names = _bound_names(file)
    name = qualname.partition(".")[0]
    return "" if defined_names is None or name in defined_names else f"target {target!r}: {source} defines no {name}"


def _find_spec(module: str) -> ModuleSpec | None:
    """Find a module's spec. Unlike `find_spec`, this imports none of its parent packages."""
    spec, name, folders = None, "", None
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        spec = PathFinder.find_spec(name, folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or ())
    return spec


def _bound_names(file: Path) -> set[str] | None:
    """Every name bound in a source file, or None if the source alone does not tell."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.asname or node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    return None if {"*", "__getattr__", "globals"} & names else names
