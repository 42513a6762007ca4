"""The module that a command names, and the reverse: an address for an object that a caller passed.

A command names a class, a factory or an instance, or a transformers config or checkpoint.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from packproof.adapters.importing import reason, working_directory
from packproof.harness.targets.location import Location
from packproof.refs.errors import UsageError


def module_named(target: str) -> nn.Module:
    """Build the module in this process, with random weights. Raises UsageError with the reason in one line.

    target: "package.module:Class" or "path/file.py:factory", called without arguments; or the path of a config.json of
        transformers, or of a folder with one, for a causal language model.
    """
    place = Path(target)
    if place.is_dir() or place.suffix == ".json":
        return _built(target, lambda: _from_config(place))
    if ":" not in target:
        raise UsageError(
            f"target {target!r}: no such folder, and no config.json; expected one, as transformers writes it, or "
            "package.module:Class or path/file.py:factory"
        )
    found = Location.parse(target).find()
    return found if isinstance(found, nn.Module) else _built(target, found)


def _built(target: str, make: Callable[[], Any]) -> nn.Module:
    try:
        module = make()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{target}: no module can be made: {reason(error)}") from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"{target}: {type(module).__name__}, expected an nn.Module or a function that returns one")
    return module


def _from_config(place: Path) -> Any:
    file = place / "config.json" if place.is_dir() else place
    if not file.is_file():
        raise UsageError(f"target {str(place)!r}: there is no {file}")
    try:
        from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415  (not a dependency)
    except ImportError as error:
        raise UsageError(f"{place}: a config needs transformers: pip install transformers") from error
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(file.parent), trust_remote_code=False))


def address(found: Any) -> str:
    """The address of a function, class or convention, as "path/file.py:name" or "package.module:name".

    "" for an object without an address, such as an instance or a closure.
    """
    place = Location.of(found) if callable(found) and hasattr(found, "__qualname__") else _as_value(found)
    if place is None:
        return ""
    file = Path(place.file)
    for here in working_directory() if file.suffix == ".py" and "." not in place.module else ():
        if file.is_relative_to(here):
            return f"{file.relative_to(here)}:{place.path}"
    return f"{place.module}:{place.path}"


def _as_value(found: Any) -> Location | None:
    """The location of a convention: the module-level name of the object in the module of its `arguments` function."""
    home = getattr(getattr(found, "arguments", None), "__module__", "")
    module = sys.modules.get(home)
    name = next((name for name, value in vars(module).items() if value is found), "") if module else ""
    return Location(home, getattr(module, "__file__", None) or "", name) if name and home != "__main__" else None
