"""Packages with lazy names: a name is imported at its first use, so that importing the package costs nothing."""

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package whose names are defined in its modules.

    A name may equal the name of its module, such as the function `ssd` in `refs/ssd.py`. It always means the function,
    also after an import of the module.
    """

    _homes: Mapping[str, str]
    """The defining module of each name."""

    def __getattr__(self, name: str) -> Any:
        if name not in self._homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(self._homes[name]), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        is_defining_module = isinstance(value, ModuleType) and self._homes.get(name) == value.__name__
        super().__setattr__(name, getattr(value, name) if is_defining_module else value)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return import_module, (self.__name__,)  # an nn.Module with the package as its `ops` can be copied

    def __dir__(self) -> list[str]:
        return sorted(vars(self).get("__all__", self._homes))


def export(package: ModuleType, names: Mapping[str, tuple[str, ...]], kind: type[LazyPackage] = LazyPackage) -> None:
    """Give a package the names defined in its modules.

    names: the names to export, by module.
    """
    vars(package)["_homes"] = {name: module for module, module_names in names.items() for name in module_names}
    package.__class__ = kind
