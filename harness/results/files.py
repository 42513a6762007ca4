"""Report files: refused before the work if they cannot be written, replaced whole so that no one reads half of one."""

import os
import tempfile
from contextlib import suppress
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
    return file.absolute()  # whatever becomes of the working directory


def replace_text(file: Path, text: str, *, last: bool = True) -> None:
    """Write the file in one step; where it is a link, the file that it points to. Raises OSError, with nothing left.

    last: whether this is its last version. A pipe or a device keeps no other one, and is written in place.
    """
    data = text.encode("utf-8", "backslashreplace")  # a path may hold what UTF-8 cannot
    if file.exists() and not file.is_file():
        if last:
            with file.open("wb", buffering=0) as stream:
                stream.write(data)
        return
    target = file.resolve()
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as whole:
        try:
            os.fchmod(whole.fileno(), target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
            whole.write(data)
            whole.flush()
            os.replace(whole.name, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(whole.name)
            raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
