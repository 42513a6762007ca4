"""The import of a kernel's build, by the hub's own library if it is installed."""

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from zlib import crc32

from packproof.base.hub.build_variants import variant_file
from packproof.base.names import TARGET_PREFIX

_LIBRARY = "kernels"


def import_kernel(source: str) -> ModuleType:
    """The package of "hub:owner/kernel@revision" or "hub:./folder". Raises UsageError, or any error of its import."""
    file = variant_file(source)
    if (file.parent / "metadata.json").is_file() and _has_library():
        return _import_by_library(file.parent)
    return _import_package(file)


def _has_library() -> bool:
    """Whether the hub's library can be imported. Not every module of that name on the path is it: many have one."""
    specs = [importlib.util.find_spec(name) for name in (_LIBRARY, "huggingface_hub")]
    if any(spec is None or spec.origin is None for spec in specs):
        return False
    return hasattr(importlib.import_module(_LIBRARY), "get_local_kernel")


def _import_by_library(variant: Path) -> ModuleType:
    """The package as its users import it. The kernels it depends on come from the cache, too."""
    library = importlib.import_module(_LIBRARY)
    with _offline():
        module: ModuleType = library.get_local_kernel(variant)
    return module


@contextmanager
def _offline() -> Iterator[None]:
    constants = importlib.import_module("huggingface_hub").constants
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _label(package: Path) -> str:
    """The name of its repository as an identifier."""
    repository = (
        next(path for path in package.parents if path.name == "build").parent if "build" in package.parts else package
    )
    if repository.parent.name == "snapshots":  # of the cache: kernels--owner--name/snapshots/commit
        repository = repository.parent.parent
    return re.sub(r"\W", "_", repository.name.rpartition("--")[2])


def _import_package(file: Path) -> ModuleType:
    """A package from its `__init__.py`, with its relative imports, under a unique name."""
    name = f"{TARGET_PREFIX}{_label(file.parent)}_{crc32(bytes(file.parent)):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(file.parent)])
    assert spec is not None, file
    assert spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
