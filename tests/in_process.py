"""Command lines and Python code in this process, and what they print: another would start for longer than most run."""

import contextlib
import importlib.metadata
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from packproof.cli import main

_INSTALLED = any(entry.name == "packproof" for entry in importlib.metadata.entry_points(group="pytest11"))
PLUGIN = () if _INSTALLED else ("-p", "packproof.harness.pytest.plugin")


@dataclass(frozen=True)
class Done:
    """returncode: of the command, 0 of code that ends. stdout, stderr: what was printed."""

    returncode: int
    stdout: str
    stderr: str


def packproof_in(folder: Path, *arguments: str) -> Done:
    """`packproof ARGUMENTS` in a folder."""
    return _printed(folder, lambda: main.run(arguments))


def pytest_in(folder: Path, *arguments: str) -> Done:
    """`pytest ARGUMENTS` in a folder, with packproof's plugin."""
    ours = ("-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=no")  # what this run of pytest has already
    return _printed(folder, lambda: pytest.main([*PLUGIN, *ours, *arguments]))


def python_in(folder: Path, source: str) -> Done:
    """`python -c SOURCE` in a folder; it raises what the code raises."""

    def run() -> int:
        exec(compile(source, "<source>", "exec"), {"__name__": "__main__"})
        return 0

    return _printed(folder, run)


def _printed(folder: Path, run: Callable[[], int]) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        imports_of(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run()
    return Done(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def imports_of(folder: Path) -> Iterator[None]:
    """Files of a folder can be imported, and are forgotten afterwards: those of another may have the same names."""
    path = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = path
        for name in [name for name, module in sys.modules.items() if _parent(module) == folder]:
            del sys.modules[name]


@contextlib.contextmanager
def installed(modules: Mapping[str, ModuleType], reimported: str) -> Iterator[None]:
    """Modules as if their packages were installed.

    reimported: the start of the names of modules that are imported again, inside and after it.
    """
    before = dict(sys.modules)
    _forget(reimported)
    sys.modules.update(modules)
    try:
        yield
    finally:
        _forget(reimported)
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def _forget(start: str) -> None:
    for name in [name for name in sys.modules if name.startswith(start)]:
        del sys.modules[name]


@contextlib.contextmanager
def environment(**variables: str | None) -> Iterator[None]:
    """Variables of the environment as a user would set them; None for one that is not set."""
    before = {name: os.environ.get(name) for name in variables}
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _parent(module: Any) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).parent if isinstance(file, str) else None
