"""Imports of users' files and functions, and the reason in one line if one fails."""

import importlib.util
import os
import sys
import sysconfig
import traceback
from functools import reduce
from importlib import import_module
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from packproof.base.hub.loading import import_kernel
from packproof.base.hub.repositories import is_hub
from packproof.base.names import TARGET_PREFIX

_MAX_MESSAGE = 500
_INTERNAL_PREFIXES = (str(Path(__file__).parents[1]) + os.sep, sysconfig.get_paths()["stdlib"] + os.sep, "<")


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


def working_directory_text() -> str:
    """The working directory in a message."""
    return next(map(str, working_directory()), "the working directory, which is gone")


def import_by_name(name: str) -> ModuleType:
    """Import a module as `python -m` would: one of the current folder comes before an installed one.

    The folder is put on the path only if it has the module. Beside any other, its files would shadow modules of
    packproof and torch. "hub:owner/kernel" is a kernel of the hub.
    """
    if is_hub(name):
        return import_kernel(name)
    package = name.partition(".")[0]
    for folder in map(str, working_directory()):
        is_on_path = bool({folder, ""} & set(sys.path))
        if not is_on_path and package not in sys.modules and PathFinder.find_spec(package, [folder]):
            sys.path.insert(0, folder)
    return import_module(name)


def shadowed_file(name: str) -> str:
    """The file of an installed module hidden by one of the same name in the current folder; "" if none is hidden."""
    package = name.partition(".")[0]
    for folder in map(str, working_directory()):
        in_folder = PathFinder.find_spec(package, [folder])
        installed = PathFinder.find_spec(package, [entry for entry in sys.path if entry not in ("", folder)])
        if not (in_folder and installed and in_folder.origin and installed.origin):
            return ""
        # a module that was never imported would come from the folder
        imported_file = getattr(sys.modules.get(package), "__file__", in_folder.origin)
        return installed.origin if imported_file == in_folder.origin != installed.origin else ""
    return ""


def resolve_attribute(module: ModuleType, qualname: str) -> Any:
    """The value of a dotted path in a module. Raises AttributeError."""
    return reduce(getattr, qualname.split("."), module)


def load_module(file: Path) -> ModuleType:
    """Run a source file as a module. It can import files of its folder, as with `python file.py`."""
    name = f"{TARGET_PREFIX}{file.stem}"
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
