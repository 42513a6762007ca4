"""Whose code computes: the kernel's own, a library's, or a reference, by the files that define it."""

import functools
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from packproof.adapters.adapter import Adapter
from packproof.base.names import TARGET_PREFIX

_PACKPROOF = Path(__file__).parents[4]
_REFERENCES = f"{_PACKPROOF / 'refs'}{os.sep}"
_ADAPTERS = f"{_PACKPROOF / 'adapters'}{os.sep}"
_PEERS = f"{_ADAPTERS}peers{os.sep}"
_HELPERS = (f"{_PACKPROOF}{os.sep}", f"{Path(torch.__file__).parent}{os.sep}")  # what an adapter calls for itself
_KERNEL_CALL = Adapter.__call__.__qualname__  # it calls the kernel, which may be a builtin
_CALL = str(Path(__file__).parents[1] / "invocation.py")  # the frame that calls the kernel
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_GENERATED = "torchinductor"  # in the paths of the code that torch.compile writes


@dataclass(frozen=True)
class Caller:
    """Where an operator was called, as far as the stack of Python tells."""

    line: str
    """The line of the kernel's own code, "" if there is none."""
    reference: str
    """The reference between that line and the operator, "" if there is none."""
    converts: bool
    """Whether an adapter called it, to convert an argument or a result."""


class Ownership:
    """Tells the code of a kernel from that of libraries.

    A kernel's own code is its package, or the folder of its file, and whatever is in no installed package.

    function: the kernel, or an adapter around it.
    reference: the file and first line of the op's reference, as "file:line"; "" if it has none.
    """

    def __init__(self, function: Callable[..., Any], reference: str = "") -> None:
        self._roots = tuple(_roots(function))
        self._reference = reference

    def owns(self, file: str) -> bool:
        """Whether a source file is code of the kernel."""
        return file.startswith(self._roots) or not _is_of_library(file)

    def caller(self, frame: FrameType | None) -> Caller:
        """The caller of what runs in this frame, up to the call of the kernel."""
        line, reference, adapter = "", "", ""
        while frame is not None and frame.f_code.co_filename != _CALL:
            code = frame.f_code
            if self._is_reference(code.co_filename, code.co_firstlineno):
                line, reference = "", f"{_module_name(frame)}.{code.co_qualname}"
            elif not line and not code.co_filename.startswith("<") and self.owns(code.co_filename):
                line = f"{Path(code.co_filename).name}:{frame.f_lineno}"
            if not adapter and code.co_filename.startswith(_ADAPTERS):
                adapter = code.co_qualname
            frame = frame.f_back
        converts = adapter not in ("", _KERNEL_CALL) and not (line or reference)
        return Caller(line, reference, converts)

    def is_of_adapter(self, frame: FrameType | None) -> bool:
        """Whether what runs in this frame is called by an adapter, to make an argument or a result, by whosever code.

        Of the frames between the call and this one, the first that does not only call the kernel tells. A function of
        `adapters.peers` adapts and calls the kernel's library: a read inside of that library is the kernel's.
        """
        files = []
        while frame is not None and frame.f_code.co_filename != _CALL:
            if frame.f_code.co_qualname != _KERNEL_CALL:
                files.append(frame.f_code.co_filename)
            frame = frame.f_back
        if not files or not files[-1].startswith(_ADAPTERS):
            return False
        return not files[-1].startswith(_PEERS) or all(file.startswith(_HELPERS) for file in files)

    def _is_reference(self, file: str, first_line: int) -> bool:
        return file.startswith(_REFERENCES) or f"{file}:{first_line}" == self._reference


def _module_name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).removeprefix(TARGET_PREFIX)


def _roots(function: Callable[..., Any]) -> list[str]:
    """The folders of the kernel's own code, each with a separator at its end."""
    while isinstance(function, functools.partial | Adapter):
        function = function.func if isinstance(function, functools.partial) else function.function
    module = str(getattr(function, "__module__", ""))
    code = getattr(inspect.unwrap(function), "__code__", None)
    package, _, rest = module.partition(".")
    folders = list(getattr(sys.modules.get(package), "__path__", ()))
    if package == _PACKPROOF.name and rest:  # its kernels, references and museum are different authors
        folders = [os.path.join(folder, rest.partition(".")[0]) for folder in folders]
    elif not folders and code is not None and os.path.isabs(code.co_filename):
        folders = [os.path.dirname(code.co_filename)]
    return [folder + os.sep for folder in folders]


def _is_of_library(file: str) -> bool:
    return (
        file.startswith((_STDLIB, f"{_PACKPROOF}{os.sep}")) or any(p in file for p in _INSTALLED) or _GENERATED in file
    )
