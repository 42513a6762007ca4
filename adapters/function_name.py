"""The name of an adapted kernel: "package.module:function" or "path/file.py:function"."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from packproof.base.errors import UsageError
from packproof.base.importing import (
    import_by_name,
    load_module,
    one_line_reason,
    resolve_attribute,
    working_directory,
    working_directory_text,
)

EXPECTED_TARGET = "a function or package.module:function (or path/file.py:function)"
_CANNOT_IMPORT = "it cannot be imported here"


@dataclass(frozen=True)
class FunctionName:
    """The name of an adapted kernel."""

    text: str
    """The name as the user wrote it."""
    module: str
    """The name of its module, "hub:owner/kernel", or the absolute path of its file."""
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
        folder_names = " or ".join(map(str, folders)) or working_directory_text()
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


def calling_file() -> str | None:
    """The source file of the caller of packproof, or None if it has none."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "packproof":
        frame = frame.f_back
    return frame.f_globals.get("__file__")
