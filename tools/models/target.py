"""The module that a command names: a class, a factory or an instance, or a transformers config or checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from packproof.base.errors import UsageError
from packproof.base.importing import one_line_reason
from packproof.harness.process.naming import Location


def load_module(target: str) -> nn.Module:
    """Build the module in this process, with random weights. Raises UsageError with the reason in one line.

    target: "package.module:Class" or "path/file.py:factory", called without arguments; or the path of a config.json of
        transformers, or of a folder with one, for a causal language model.
    """
    path = Path(target)
    if path.is_dir() or path.suffix == ".json":
        return _build(target, lambda: _from_config(path))
    if ":" not in target:
        raise UsageError(
            f"target {target!r}: no such folder, and no config.json; expected one, as transformers writes it, or "
            "package.module:Class or path/file.py:factory"
        )
    factory = Location.parse(target).find()
    return factory if isinstance(factory, nn.Module) else _build(target, factory)


def _build(target: str, make: Callable[[], Any]) -> nn.Module:
    try:
        module = make()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{target}: no module can be made: {one_line_reason(error)}") from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"{target}: {type(module).__name__}, expected an nn.Module or a function that returns one")
    return module


def _from_config(path: Path) -> Any:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"target {str(path)!r}: there is no {file}")
    try:
        from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415  (not a dependency)
    except ImportError as error:
        raise UsageError(f"{path}: a config needs transformers: pip install transformers") from error
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(file.parent), trust_remote_code=False))
