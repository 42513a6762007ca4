"""The location of a function as data, for another process to import it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from packproof.adapters.peers import PEERS, distribution_of, peers_of
from packproof.base.errors import UsageError
from packproof.base.hub.build_variants import variant_file
from packproof.base.hub.repositories import PREFIX, is_hub
from packproof.base.importing import (
    import_by_name,
    load_module,
    one_line_reason,
    resolve_attribute,
    working_directory,
    working_directory_text,
)
from packproof.base.names import alternatives_text, did_you_mean
from packproof.harness.process.naming.source_names import canonical_target, incomplete_target_error

_import_depth = 0  # of the targets that this process is importing


@contextmanager
def _importing() -> Iterator[None]:
    global _import_depth  # noqa: PLW0603
    _import_depth += 1
    try:
        yield
    finally:
        _import_depth -= 1


def require_no_import() -> None:
    """Raises UsageError while a target is imported: a check that it starts would import it again, and so on."""
    if _import_depth:
        raise UsageError('its own import starts a check; put that below if __name__ == "__main__":')


@dataclass(frozen=True)
class Location:
    """A function by module, file and qualified name.

    With both a module and a file, the module is tried first and counts only if it comes from that file.
    """

    module: str
    """Dotted name, the folder of a kernel of the hub after "hub:", or ""."""
    file: str
    """Path of the source, or ""."""
    qualname: str
    """Attributes from the module to the function, separated by dots."""

    @classmethod
    def parse(cls, target: str) -> "Location":
        """Read "package.module:function", "path/file.py:function", "hub:owner/kernel:function", or a peer's name.

        Dots may follow.
        """
        target = canonical_target(target)
        if target in PEERS:
            PEERS[target].require()
            return cls(PEERS[target].module, "", PEERS[target].function)
        source, _, qualname = target.rpartition(":")
        if not source or not qualname or (is_hub(target) and target.count(":") == 1):
            raise incomplete_target_error(target)
        if source == "__main__" or {"<", "("} & set(qualname):
            raise UsageError(
                f"target {target!r} {_origin(qualname)}, where no other process finds it; put it at the top level of a "
                "module or a file"
            )
        if is_hub(source):  # by its folder: the environment of the kernel's process may lead to another cache
            return cls(f"{PREFIX}{variant_file(source).parent}", "", qualname)
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
            raise UsageError(f"{name} is a class, not a function; {_what_to_name(target, self.qualname)}")
        owner, _, method = self.qualname.rpartition(".")
        if owner and isinstance(target, FunctionType) and next(iter(signature(target).parameters), "") == "self":
            raise UsageError(
                f"{name} is a method, not a function; name that of an object: paste {method} = {owner}(...).{method}, "
                f"with its arguments in place of ..., and name {method}"
            )
        if not callable(target):
            raise UsageError(f"{name} is of type {type(target).__name__}, not a function")
        return target  # type: ignore[no-any-return]

    def find(self) -> Any:
        """Import the object, of any type. Raises UsageError with the reason in one line."""
        source = self.module or self.file
        try:
            with _importing():
                module = self._module()
        except (Exception, SystemExit) as error:
            way_out = _way_out(error, source) if isinstance(error, ModuleNotFoundError) else ""
            raise UsageError(f"{source} cannot be imported: {one_line_reason(error)}{way_out}") from error
        try:
            return resolve_attribute(module, self.qualname)
        except AttributeError as error:
            raise UsageError(f"{source} has no {self.qualname}{_other_targets(module, self.qualname)}") from error

    def _module(self) -> ModuleType:
        if self.module:
            try:
                module = import_by_name(self.module)
            except ModuleNotFoundError:
                if not self.file:
                    raise
            else:
                if not self.file or getattr(module, "__file__", None) == self.file:
                    return module
        return load_module(Path(self.file))


def _what_to_name(target: type, qualname: str) -> str:
    if hasattr(target, "backward") and hasattr(target, "apply"):
        return f"name {qualname}.apply, or a function that calls it"
    if not hasattr(target, "forward"):
        return "name a function that calls it"
    variable = qualname.rpartition(".")[2].lower()
    return (
        f"name an object of it: paste {variable} = {qualname}(...), with its arguments in place of ..., and name "
        f"{variable} (`packproof model` checks an nn.Module as a whole)"
    )


def _origin(qualname: str) -> str:
    """How a function came to be that no other process finds."""
    function, _, name = qualname.rpartition(".<locals>.")
    if "(" in qualname or name == "<lambda>":
        return "is an object without a name"
    return f"was defined inside of {function}" if function else "was defined in a session or a notebook"


def _way_out(error: ModuleNotFoundError, source: str) -> str:
    """What to do about a missing module."""
    package = str(error.name).partition(".")[0]
    if distribution := distribution_of(package):
        return f"; pip install {distribution}"
    if package != source.partition(".")[0]:
        return ""
    folder = working_directory_text()
    return f"; it is neither in {folder} nor installed, and a file is named as path/{package}.py:function"


def _other_targets(module: ModuleType, name: str) -> str:
    """The targets that may be meant by a name that a module lacks."""
    if peers := peers_of(module.__name__):
        return f"; {did_you_mean(f'{module.__name__}:{name}', peers)}with an adapter {alternatives_text(peers)}"
    file = f"{module.__name__}.py"
    paths = [folder / file for folder in working_directory() if (folder / file).is_file()]
    if paths and not any(module.__file__ and path.samefile(module.__file__) for path in paths):
        return f"; it is that of {module.__file__}: name the file, {file}:{name}"
    here = [n for n, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    functions = [n for n in here if callable(getattr(module, n)) and not n.startswith("_")]
    return f"; {did_you_mean(name, functions)}in it {alternatives_text(functions)}" if functions else ""
