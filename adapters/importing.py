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
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from packproof.base.errors import UsageError

_MAX_MESSAGE = 500
_INTERNAL_PREFIXES = (str(Path(__file__).parents[1]) + os.sep, sysconfig.get_paths()["stdlib"] + os.sep, "<")
EXPECTED_TARGET = "a function or package.module:function (or path/file.py:function)"
_CANNOT_IMPORT = "it cannot be imported here"


@dataclass(frozen=True)
class FunctionName:
    """The name of an adapted kernel."""

    text: str
    """The name as the user wrote it."""
    module: str
    """The name of its module, or the absolute path of its file."""
    qualname: str
    """The dotted path of the function inside the module."""

    @classmethod
    def parse(cls, text: str, caller_folder: Path | None = None) -> "FunctionName":
        """Read a name. A file is searched in the current folder, then in `caller_folder`.

        Raises UsageError for a file in neither, and for a text of another form.
        """
        module, _, qualname = text.rpartition(":")
        if not module or not qualname:
            raise UsageError(f"adapt: target is {text!r}, expected {EXPECTED_TARGET}")
        if not module.endswith(".py"):
            return cls(text, module, qualname)
        folders = [*working_directory(), *([caller_folder] if caller_folder else [])]
        for folder in folders:
            if (folder / module).is_file():
                return cls(text, str((folder / module).resolve()), qualname)
        folder_names = " or ".join(map(str, folders)) or "the working directory, which is gone"
        raise UsageError(f"adapt: target is {text!r}, and there is no file {module} in {folder_names}")

    def load(self) -> Callable[..., Any]:
        """Import the function. Raises UsageError with the reason in one line."""
        try:
            module = self._module()
        except (Exception, SystemExit) as error:
            raise UsageError(f"adapt({self.text}): {_CANNOT_IMPORT}: {one_line_reason(error)}") from error
        try:
            function = resolve_attribute(module, self.qualname)
        except AttributeError as error:
            raise UsageError(f"adapt({self.text}): {_CANNOT_IMPORT}: {error}") from error
        if not callable(function):
            raise UsageError(
                f"adapt({self.text}): target is of type {type(function).__name__}, expected {EXPECTED_TARGET}"
            )
        return function  # type: ignore[no-any-return]

    def _module(self) -> ModuleType:
        if not self.module.endswith(".py"):
            return import_by_name(self.module)
        modules_of_file = (
            m for m in list(sys.modules.values()) if getattr(m, "__dict__", {}).get("__file__") == self.module
        )
        return next(modules_of_file, None) or load_module(
            Path(self.module)
        )  # a second run would register operators again


def one_line_reason(error: BaseException) -> str:
    """An error in one line, with the innermost line of user code in its traceback."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:_MAX_MESSAGE]}".removesuffix(": ")
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [
        f for f in frames if not (f.filename.startswith(_INTERNAL_PREFIXES) or "site-packages" in f.filename)
    ]
    return f"{text} ({Path(user_frames[-1].filename).name}:{user_frames[-1].lineno})" if user_frames else text


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


def import_by_name(name: str) -> ModuleType:
    """Import a module as `python -m` would: one of the current folder comes before an installed one.

    The folder is put on the path only if it has the module. Beside any other, its files would shadow modules of
    packproof and torch.
    """
    package = name.partition(".")[0]
    for folder in map(str, working_directory()):
        is_on_path = bool({folder, ""} & set(sys.path))
        if not is_on_path and package not in sys.modules and PathFinder.find_spec(package, [folder]):
            sys.path.insert(0, folder)
    return import_module(name)


def shadowed_file(name: str) -> str:
    """The file of an installed module that the current folder's module of this name hides; "" if there is none."""
    package = name.partition(".")[0]
    for folder in map(str, working_directory()):
        own = PathFinder.find_spec(package, [folder])
        installed = PathFinder.find_spec(package, [entry for entry in sys.path if entry not in ("", folder)])
        if own and installed and own.origin and installed.origin not in (None, own.origin):
            already_imported = getattr(sys.modules.get(package), "__file__", own.origin)
            return installed.origin or "" if already_imported == own.origin else ""
    return ""


def resolve_attribute(module: ModuleType, qualname: str) -> Any:
    """The value of a dotted path in a module. Raises AttributeError."""
    return reduce(getattr, qualname.split("."), module)


def load_module(file: Path) -> ModuleType:
    """Run a source file as a module. It can import files of its folder, as with `python file.py`."""
    name = f"packproof_target_{file.stem}"
    loader = _UncachedLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    sys.modules[name] = module
    loader.exec_module(module)
    return module


class _UncachedLoader(SourceFileLoader):
    """Compiles the source at each import.

    Python reuses bytecode if size and modification time (in seconds) of the file are unchanged. A kernel corrected by
    one digit would still fail.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.get_filename(fullname))
