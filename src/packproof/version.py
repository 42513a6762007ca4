"""The version of packproof, and those of torch and triton that it was tried with: a newer one is named, not refused.

Modules import them from here, so that none of them imports the package that exports them.
"""

import sys
from collections.abc import Callable, Iterator

__version__ = "0.1.0"

TRIED = {"torch": ("2.9", "2.15"), "triton": ("3.5", "3.9")}
"""The oldest and the newest release of each package; docs/releases.md has all, with dates."""


def tried(package: str) -> str:
    """The releases of a package that were tried, in words."""
    return " to ".join(TRIED[package])


def installed(package: str) -> str:
    """The version of a package; "" where it is missing."""
    module = sys.modules.get(package)
    if module is not None:
        return str(getattr(module, "__version__", ""))
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  (the command line does without)

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def is_newer(version: str, release: str) -> bool:
    """Whether a version is of a later release."""
    return _numbers(version) > _numbers(release)


def untried(version_of: Callable[[str], str] = installed) -> Iterator[tuple[str, str]]:
    """The packages whose version is newer than any release that was tried, each with its sentence."""
    for package, (_, newest) in TRIED.items():
        if is_newer(version := version_of(package), newest):
            public = version.partition("+")[0]
            yield package, f"{package} {public} is newer than what packproof was tried with ({tried(package)})"


def _numbers(release: str) -> tuple[int, ...]:
    """Major and minor; zeros for what is no number."""
    parts = release.partition("+")[0].split(".")[:2]
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)
