"""What is computed when it is first asked for: names of packages, so that importing these costs nothing, and values."""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, Generic, TypeVar

T = TypeVar("T")


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


class Deferred(Generic[T]):
    """A value that is computed when it is first asked for.

    make: computes it.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make
        self._values: list[T] = []

    def __call__(self) -> T:
        if self._make is not None:
            self._values.append(self._make())
            self._make = None  # what it was computed from need not be kept
        return self._values[0]

    @property
    def is_computed(self) -> bool:
        return self._make is None
