"""Packages whose names are imported when they are first used: importing the package itself costs nothing."""

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package with names that its modules define. One that is a module's own name too, such as `ssd` of `refs.ssd`,
    is what the module defines, also once the module is imported.

    _homes: the module of each name.
    """

    _homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self._homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(self._homes[name]), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        is_home = isinstance(value, ModuleType) and self._homes.get(name) == value.__name__
        super().__setattr__(name, getattr(value, name) if is_home else value)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return import_module, (self.__name__,)  # a module that holds the package, as `ops`, can be copied

    def __dir__(self) -> list[str]:
        return sorted(vars(self).get("__all__", self._homes))


def export(package: ModuleType, names: Mapping[str, tuple[str, ...]], kind: type[LazyPackage] = LazyPackage) -> None:
    """Give a package the names that each of these modules defines."""
    vars(package)["_homes"] = {name: module for module, defined in names.items() for name in defined}
    package.__class__ = kind
