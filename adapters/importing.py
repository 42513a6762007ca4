"""Imports a function by its name on the command line: "package.module:function" or "path/file.py:function"."""

import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from packproof.refs.errors import UsageError

_WIDEST = 500
_NOT_ITS_OWN = (str(Path(__file__).parents[1]) + os.sep, sysconfig.get_paths()["stdlib"] + os.sep, "<")
EXPECTED = "a function or package.module:function (or path/file.py:function)"
_CANNOT = "it cannot be imported here"


@dataclass(frozen=True)
class FunctionName:
    """The name of an adapted kernel."""

    text: str
    """The name as the user wrote it."""
    place: str
    """The name of its module, or the absolute path of its file."""
    path: str
    """The dotted path of the function inside the module."""

    @classmethod
    def parse(cls, text: str, beside: Path | None = None) -> "FunctionName":
        """Read a name. A file is searched in the current folder, then in `caller_folder`.

        Raises UsageError for a file in neither, and for a text of another form.
        """
        place, _, path = text.rpartition(":")
        if not place or not path:
            raise UsageError(f"adapt: target is {text!r}, expected {EXPECTED}")
        if not place.endswith(".py"):
            return cls(text, place, path)
        folders = [*working_directory(), *([beside] if beside else [])]
        for folder in folders:
            if (folder / place).is_file():
                return cls(text, str((folder / place).resolve()), path)
        where = " or ".join(map(str, folders)) or "the working directory, which is gone"
        raise UsageError(f"adapt: target is {text!r}, and there is no file {place} in {where}")

    def load(self) -> Callable[..., Any]:
        """Import the function. Raises UsageError with the reason in one line."""
        try:
            module = self._module()
        except (Exception, SystemExit) as error:
            raise UsageError(f"adapt({self.text}): {_CANNOT}: {reason(error)}") from error
        try:
            found = attribute(module, self.path)
        except AttributeError as error:
            raise UsageError(f"adapt({self.text}): {_CANNOT}: {error}") from error
        if not callable(found):
            raise UsageError(f"adapt({self.text}): target is of type {type(found).__name__}, expected {EXPECTED}")
        return found  # type: ignore[no-any-return]

    def _module(self) -> ModuleType:
        if not self.place.endswith(".py"):
            return import_module(self.place)
        known = (m for m in list(sys.modules.values()) if getattr(m, "__dict__", {}).get("__file__") == self.place)
        return next(known, None) or module_of_file(Path(self.place))  # a second run would register operators again


def reason(error: BaseException) -> str:
    """An error in one line, with the innermost line of user code in its traceback."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:_WIDEST]}".removesuffix(": ")
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not (f.filename.startswith(_NOT_ITS_OWN) or "site-packages" in f.filename)]
    return f"{text} ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else text


def working_directory() -> list[Path]:
    """The working directory; empty if it was deleted."""
    try:
        return [Path.cwd()]
    except OSError:
        return []


def calling_file() -> str | None:
    """The source file of the caller of packproof, or None if it has none."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "packproof":
        frame = frame.f_back
    return frame.f_globals.get("__file__")


def attribute(module: ModuleType, path: str) -> Any:
    """The value of a dotted path in a module. Raises AttributeError."""
    return reduce(getattr, path.split("."), module)


def module_of_file(file: Path) -> ModuleType:
    """Run a source file as a module. It can import files of its folder, as with `python file.py`."""
    name = f"packproof_target_{file.stem}"
    loader = _AsItIsNow(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    sys.modules[name] = module
    loader.exec_module(module)
    return module


class _AsItIsNow(SourceFileLoader):
    """Compiles the source at each import.

    Python reuses bytecode if size and modification time (in seconds) of the file are unchanged. A kernel corrected by
    one digit would still fail.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.get_filename(fullname))
