"""The builds of a kernel, one for each combination of torch, backend and machine, and the best for this machine.

The hub names them torch213-cxx11-cu130-x86_64-linux or torch-stable-abi29-cu128-x86_64-linux, and without machine code
torch-cuda or torch-universal.
"""

import importlib.util
import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packproof.base.errors import UsageError
from packproof.base.hub.repositories import is_hub, repository_folder

_COMPILED = re.compile(
    r"torch(?P<abi>-stable-abi)?(?P<major>\d)(?P<minor>\d+)(-cxx(?P<cxx>11|98))?"
    r"-(?P<backend>[a-z]+)(?P<version>\d*)-(?P<machine>\w+)-(?P<system>\w+)"
)
_PYTHON = re.compile(r"torch-(?P<backend>\w+)")


@dataclass(frozen=True)
class Machine:
    """The requirements of a build."""

    torch: tuple[int, int]
    cuda: str
    """The CUDA version of torch, without dots: "130"; "" for none."""
    rocm: str
    platform: str
    """"x86_64-linux"."""

    @property
    def backend(self) -> str:
        return "cuda" if self.cuda else "rocm" if self.rocm else "cpu"

    def __str__(self) -> str:
        version = self.cuda or self.rocm
        return f"torch {self.torch[0]}.{self.torch[1]}, {self.backend}{version and f' {version}'}, {self.platform}"


@cache
def this_machine() -> Machine:
    """This machine, from torch's file with its version: torch is not imported."""
    package = importlib.util.find_spec("torch")
    assert package is not None, "packproof requires torch"
    assert package.origin is not None, package
    file = Path(package.origin).with_name("version.py")
    spec = importlib.util.spec_from_file_location("_version_of_torch", file)
    assert spec is not None, file
    assert spec.loader is not None, file
    version = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(version)
    major, minor = map(int, str(version.__version__).split(".")[:2])
    cuda, rocm = (_digits(getattr(version, name, None)) for name in ("cuda", "hip"))
    return Machine((major, minor), cuda, rocm, f"{platform.machine()}-{platform.system().lower()}")


def _digits(version: str | None) -> str:
    return "".join((version or "").split(".")[:2])


def variant_file(source: str) -> Path:
    """The `__init__.py` of the best build for this machine. Raises UsageError.

    source: "hub:owner/kernel@revision" of the cache, or "hub:./folder" of a repository, its build folder or one build.
    """
    assert is_hub(source), source
    folder = repository_folder(source)
    if file := _init_file(folder):
        return file
    builds = folder / "build" if (folder / "build").is_dir() else folder
    names = sorted(path.name for path in builds.iterdir() if path.is_dir() and path.name.startswith("torch"))
    fitting = sorted((rank, name) for name in names if (rank := preference(name, this_machine())))
    if not fitting:
        raise UsageError(
            f"target {source}: no build in {builds} is for {this_machine()}; "
            f"there are {', '.join(names) or 'none; its folders would be called torch-universal or similar'}"
        )
    variant = builds / fitting[-1][1]
    if file := _init_file(variant):
        return file
    raise UsageError(f"target {source}: {variant} has no __init__.py, and no folder with one")


def preference(name: str, machine: Machine) -> tuple[int, ...]:
    """How well a build fits a machine, for comparison; () if it does not.

    A build with machine code comes before one of Python alone. Triton kernels in Python fit a machine without a GPU,
    too: there they are interpreted.
    """
    if match := _PYTHON.fullmatch(name):
        order = (machine.backend, "universal", "cuda")  # from the most to the least wanted
        return (0, -order.index(match["backend"])) if match["backend"] in order else ()
    match = _COMPILED.fullmatch(name)
    if not match or f"{match['machine']}-{match['system']}" != machine.platform or match["cxx"] == "98":
        return ()
    version = int(match["major"]), int(match["minor"])
    if version > machine.torch or (not match["abi"] and version != machine.torch):
        return ()
    if match["backend"] == "cu":
        built_for = int(match["version"])
        fits = machine.cuda and built_for // 10 == int(machine.cuda) // 10 and built_for <= int(machine.cuda)
    else:
        built_for = 0
        version_here = machine.rocm if machine.backend == "rocm" else ""
        fits = match["backend"] == machine.backend and match["version"] == version_here
    return (2 if match["abi"] else 1, *version, built_for) if fits else ()


def _init_file(variant: Path) -> Path | None:
    """The package of a build: the folder itself, or in older builds its only package."""
    packages = [variant, *(path for path in sorted(variant.iterdir()) if path.is_dir())]
    return next((path / "__init__.py" for path in packages if (path / "__init__.py").is_file()), None)
