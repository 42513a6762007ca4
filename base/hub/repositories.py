"""The folder of a kernel repository, in the local cache of the hub or anywhere else."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from packproof.base.errors import UsageError

PREFIX = "hub:"
EXPECTED_SOURCE = "hub:owner/kernel, hub:owner/kernel@revision, or hub:./folder"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_KINDS = ("kernels", "models")  # of repositories: kernels have had one of their own since 2026


def is_hub(source: str) -> bool:
    """Whether a target or its module is a kernel of the hub."""
    return source.startswith(PREFIX)


def repository_folder(source: str) -> Path:
    """The folder with the `build` of "hub:owner/kernel@revision" or "hub:./folder". Raises UsageError."""
    name = source.removeprefix(PREFIX)
    if name.startswith((".", "/", "~")):
        folder = Path(name).expanduser().resolve()
        if not folder.is_dir():
            raise UsageError(f"target {source}: there is no folder {folder}")
        return folder
    name, _, revision = name.partition("@")
    if not _REPOSITORY.fullmatch(name):
        raise UsageError(f"target {source!r}, expected {EXPECTED_SOURCE}")
    return _cached_folder(name, revision)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The download cache of the hub's library, by its environment variables."""
    for variable, below in (
        ("KERNELS_CACHE", ""),
        ("HF_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if folder := environment.get(variable):
            return Path(folder).expanduser() / below
    return Path("~/.cache/huggingface/hub").expanduser()


def _cached_folder(name: str, revision: str) -> Path:
    """The snapshot of a repository in the cache."""
    folders = [cache_folder() / f"{kind}--{name.replace('/', '--')}" for kind in _KINDS]
    present = [folder for folder in folders if folder.is_dir()]
    if not present:
        raise UsageError(
            f"target {PREFIX}{name}: it is not in the cache of the hub; searched {' and '.join(map(str, folders))}\n"
            f"    packproof downloads nothing. {_download_text(name, revision)}; or name a folder, {PREFIX}./folder"
        )
    revisions = {r: snapshot for folder in reversed(present) for r, snapshot in _revisions(folder).items()}
    selected = revision or _newest(revisions)
    snapshots = {snapshot for r, snapshot in revisions.items() if r == selected} or {
        snapshot for snapshot in revisions.values() if revision and snapshot.name.startswith(revision)
    }
    if len(snapshots) != 1:
        asked_for = f"revision {revision} of it is not" if revision else "no revision of it is"
        raise UsageError(
            f"target {PREFIX}{name}{'@' if revision else ''}{revision}: {asked_for} in {' or '.join(map(str, present))}"
            f"; there are {', '.join(sorted(revisions)) or 'none'}\n"
            f"    packproof downloads nothing. {_download_text(name, revision)}"
        )
    return snapshots.pop()


def _revisions(repository: Path) -> dict[str, Path]:
    """The snapshots of a repository by hash, branch and tag."""
    snapshots = {path.name: path for path in repository.glob("snapshots/*") if path.is_dir()}
    references = {path: path.read_text().strip() for path in (repository / "refs").rglob("*") if path.is_file()}
    named = {
        str(path.relative_to(repository / "refs")): snapshots[commit]
        for path, commit in references.items()
        if commit in snapshots
    }
    return snapshots | named


def _newest(revisions: Mapping[str, Path]) -> str:
    """The default revision: the highest version, else `main`, else the only one; "" if there are several others."""
    versions = [r for r in revisions if re.fullmatch(r"v\d+", r)]
    if versions:
        return max(versions, key=lambda version: int(version[1:]))
    if "main" in revisions:
        return "main"
    return next(iter(revisions)) if len(set(revisions.values())) == 1 else ""


def _download_text(name: str, revision: str) -> str:
    is_version = re.fullmatch(r"v\d+", revision) or not revision
    argument = f"version={revision[1:] or 1}" if is_version else f"revision={revision!r}"
    return (
        f"`pip install kernels`, then `python -c \"import kernels; kernels.install_kernel('{name}', {argument})\"` "
        "fetches it"
    )
