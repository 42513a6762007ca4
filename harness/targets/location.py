"""Where a function is found, as data, so that another process can import it."""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from packproof.adapters.importing import attribute, module_of_file
from packproof.adapters.registry import PEERS
from packproof.refs.errors import UsageError

_WIDEST = 500


@dataclass(frozen=True)
class Location:
    """module: its dotted name, or ""; file: the path of its source, or ""; path: attributes from module to function.

    With both a module and a file the module is tried first and counts only if it comes from that file.
    """

    module: str
    file: str
    path: str

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
        file = Path(place).resolve()
        if not file.is_file():
            raise UsageError(f"target {target!r}: there is no file {place}")
        return cls("", str(file), path)

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Location | None":
        """Where `function` can be imported from, or None: a closure, a lambda, a wrapper, a script's."""
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
        found = self.find()
        if not callable(found):
            kind = type(found).__name__
            raise UsageError(f"{self.module or self.file}:{self.path} is of type {kind}, not a function")
        return found  # type: ignore[no-any-return]

    def find(self) -> Any:
        """Import whatever is there. Raises UsageError with the reason in one line."""
        place = self.module or self.file
        try:
            module = self._module()
        except (Exception, SystemExit) as error:
            reason = " ".join(str(error).split())[:_WIDEST]
            raise UsageError(f"{place} cannot be imported: {type(error).__name__}: {reason}") from error
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
