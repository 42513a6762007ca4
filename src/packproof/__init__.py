"""Proves, by test, that kernels for packed variable-length sequences compute each sequence as if it were alone.

Names are imported when they are first used: `import packproof` costs nothing, and needs neither triton nor hypothesis.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from packproof import kernels
from packproof.version import __version__

if TYPE_CHECKING:
    from packproof import adapters, refs
    from packproof.harness.debug.diff import diff
    from packproof.harness.debug.gradcheck import dot_product_test, gradcheck
    from packproof.harness.engine.check import check
    from packproof.harness.engine.replay import replay
    from packproof.properties.declaration import kernel
    from packproof.properties.domain import Domain
    from packproof.properties.magnitude import magnitude
    from packproof.properties.op import Op
    from packproof.properties.promises import Promises
    from packproof.properties.property import Property
    from packproof.refs.errors import ArgumentError, CheckFailed, LayoutError, PackproofError, UsageError
    from packproof.refs.packing import PackLayout, pack, unpack

__all__ = [
    "ArgumentError",
    "CheckFailed",
    "Domain",
    "LayoutError",
    "Op",
    "PackLayout",
    "PackproofError",
    "Promises",
    "Property",
    "UsageError",
    "__version__",
    "adapters",
    "check",
    "diff",
    "dot_product_test",
    "gradcheck",
    "kernel",
    "kernels",
    "magnitude",
    "pack",
    "refs",
    "replay",
    "unpack",
]

_HOMES = {
    "packproof.harness.engine.check": ("check",),
    "packproof.harness.debug.diff": ("diff",),
    "packproof.harness.debug.gradcheck": ("dot_product_test", "gradcheck"),
    "packproof.harness.engine.replay": ("replay",),
    "packproof.properties.declaration": ("kernel",),
    "packproof.properties.magnitude": ("magnitude",),
    "packproof.properties.domain": ("Domain",),
    "packproof.properties.op": ("Op",),
    "packproof.properties.promises": ("Promises",),
    "packproof.properties.property": ("Property",),
    "packproof.refs.errors": ("ArgumentError", "CheckFailed", "LayoutError", "PackproofError", "UsageError"),
    "packproof.refs.packing": ("PackLayout", "pack", "unpack"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

_KERNELS = {
    "causal_conv1d": "packproof.kernels.causal_conv1d",
    "rope": "packproof.kernels.rope",
    "rope_qk": "packproof.kernels.rope",
    "selective_scan": "packproof.kernels.selective_scan",
    "ssd": "packproof.kernels.ssd",
}


def __getattr__(name: str) -> Any:
    if name in ("adapters", "refs"):
        return import_module(f"packproof.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'packproof' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _kernel(name: str) -> Any:
    if name not in _KERNELS:
        raise AttributeError(f"module 'packproof.kernels' has no attribute {name!r}")
    try:
        value = getattr(import_module(_KERNELS[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ImportError(f"packproof.kernels.{name} needs triton: install it, or use packproof.refs.{name}") from error
    setattr(kernels, name, value)
    return value


def _install_interpreter() -> None:
    """Repair Triton's interpreter, once: as shipped it computes other values than a GPU. Raises PackproofError."""
    from packproof.harness.interpreter.repair import install  # noqa: PLC0415  (needs triton)

    install()


class _Kernels(ModuleType):
    """The folder of kernels. The name of an op is its function, also once the module of that name is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        is_home = name in _KERNELS and isinstance(value, ModuleType)
        super().__setattr__(name, getattr(value, name) if is_home else value)


def _export_kernels(module: ModuleType) -> None:
    """Give the folder of kernels, which has no __init__.py of its own, its public names."""
    module.__class__ = _Kernels
    module.__getattr__ = _kernel  # type: ignore[method-assign]
    module.__dir__ = lambda: sorted({*vars(module), *_KERNELS})  # type: ignore[method-assign]
    module.install_interpreter = _install_interpreter  # type: ignore[attr-defined]
    module.__doc__ = "Fast packed kernels, with the names and signatures of packproof.refs."


_export_kernels(kernels)
