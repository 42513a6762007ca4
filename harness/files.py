"""Report files: refused before the work if they cannot be written, replaced whole so that nobody reads half of one."""

import os
from pathlib import Path

from packproof.refs.errors import UsageError


def writable(path: str, option: str) -> Path:
    """The path, or UsageError if a file cannot be written there."""
    file = Path(path)
    if file.is_dir():
        raise UsageError(f"{option}: {path} is a folder; expected the name of a file")
    if not file.parent.is_dir():
        raise UsageError(f"{option}: the folder {file.parent} of {path} does not exist; create it first")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UsageError(f"{option}: {path} may not be written by this user")
    return file


def replace_text(file: Path, text: str) -> None:
    """Write the file in one step."""
    whole = file.with_name(f".{file.name}.{os.getpid()}")
    whole.write_text(text, encoding="utf-8")
    whole.replace(file)
