"""A submission, fixed by the digest of its files before anything of it runs, and the seed drawn from that digest."""

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from packproof.base.errors import UsageError
from packproof.base.files import read_bytes
from packproof.base.hub.repositories import PREFIX, is_hub
from packproof.harness.process import import_path
from packproof.harness.process.naming import Location

_SOURCES = {".py", ".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp", ".so", ".json"}
_MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class FixedSubmission:
    """A kernel, handed in."""

    name: str
    """As the caller named it."""
    target: str
    """The name of its function, as for a check."""
    folder: Path
    files: tuple[Path, ...]
    """Its file, or all sources of its package, in this folder."""
    digest: str
    """SHA-256 of the file, or of all files with their names."""

    @classmethod
    def read(cls, target: str) -> "FixedSubmission":
        """Read its files; nothing is imported. Raises UsageError if there are none."""
        folder, files = _files(target)
        return cls(target, target, folder, files, _digest(folder, files))

    @classmethod
    def of_files(cls, name: str, target: str, folder: Path, files: Iterable[str]) -> "FixedSubmission":
        """The submission of this target with these files of a folder. Raises UsageError if one cannot be read."""
        paths = tuple(folder / file for file in files)
        return cls(name, target, folder, paths, _digest(folder, paths))

    @property
    def is_unchanged(self) -> bool:
        """Whether its files are as they were read."""
        try:
            return _digest(self.folder, self.files) == self.digest
        except UsageError:  # one is gone
            return False

    def seed(self, secret: str, contract_digest: str) -> int:
        """The seed of the cases and of the timed problems, from 0 to 2^32 - 1.

        Another submission has another one. Without the secret, no one knows it.
        """
        text = f"{self.digest} {contract_digest}"
        return int.from_bytes(hmac.digest(secret.encode(), text.encode(), "sha256")[:4])


def drawn_secret() -> str:
    """A new secret, of 128 bits."""
    return secrets.token_hex(16)


def _digest(folder: Path, files: Sequence[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        try:
            data = read_bytes(file, _MOST_BYTES)
        except OSError as error:
            raise UsageError(f"submission: {file}: {error.strerror or error}") from None
        if len(files) == 1:
            return hashlib.sha256(data).hexdigest()
        total.update(f"{file.relative_to(folder).as_posix()} {len(data)}\n".encode() + data)
    return total.hexdigest()


def _files(target: str) -> tuple[Path, tuple[Path, ...]]:
    """The folder and the files of a submission: one file, or the sources of a package."""
    location = Location.parse(target)
    if location.file:
        return Path(location.file).parent, (Path(location.file),)
    origin = Path(location.module.removeprefix(PREFIX)) if is_hub(location.module) else _origin(location.module)
    files = (origin,) if origin.is_file() else tuple(sorted(_sources(origin)))
    if not files:
        raise UsageError(f"submission: {target!r} has no source; expected path/file.py:function or a module with files")
    return origin if origin.is_dir() else origin.parent, files


def _origin(module: str) -> Path:
    """The file of a module, or the folder of its package, by its name alone: an import would run its code here."""
    package = module.partition(".")[0]
    spec = PathFinder.find_spec(package, [str(Path.cwd()), *import_path()])
    if spec is None or not (spec.origin or spec.submodule_search_locations):
        raise UsageError(f"submission: there is no module {package}, neither in {Path.cwd()} nor installed")
    return Path(next(iter(spec.submodule_search_locations or ()), spec.origin or ""))


def _sources(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder, followlinks=True):
        yield from (Path(root) / name for name in names if Path(name).suffix in _SOURCES)
