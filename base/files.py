"""Reading and writing files safely, also where the path is a device, a pipe or a link, or the disk is full."""

import errno
import json
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from packproof.base.errors import PackproofError, UsageError
from packproof.base.wording import printable

_MOST_BYTES = 64 << 20
_MOST_PROBLEM = 300  # characters
_READER_SECONDS = 10.0
_NOT_REPLACEABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)  # a read-only folder, a mounted file


class WriteError(PackproofError, OSError):
    """A file could not be written; its old contents are unchanged."""


def writable_path(path: str, option: str) -> Path:
    """The path, or UsageError if a file cannot be written there."""
    file = Path(path)
    try:
        if file.is_dir():
            raise UsageError(f"{option}: {path} is a folder; expected the name of a file")
        # a link to a missing file: the file will be created in the folder of its target
        folder = file.resolve().parent if not _exists(file) and file.is_symlink() else file.parent
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be written: {error.strerror}") from None
    if not folder.is_dir():
        raise UsageError(f"{option}: the folder {folder} of {path} does not exist; create it first")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise UsageError(f"{option}: {path} is not writable by this user")
    return file.absolute()  # the working directory may change before the file is written


def replace_text(file: Path, text: str, *, final: bool = True, reader_seconds: float = _READER_SECONDS) -> None:
    """Write the file atomically; of a link, its target. Raises WriteError and leaves no partial file.

    final: whether this is the last version. A pipe, a device or the standard output gets the last version only, written
    in place.
    reader_seconds: how long to wait for a reader of a pipe.
    """
    data = text.encode("utf-8", "backslashreplace")  # a path may hold what UTF-8 cannot
    try:
        descriptor = _printing_descriptor(file) if _exists(file) else None
        if descriptor is None and (file.is_file() or not file.exists()):
            _replace_file(file.resolve(), data)
        elif final:
            _append(file if descriptor is None else descriptor, data, reader_seconds)
    except OSError as error:
        raise WriteError(error.errno, error.strerror, str(file)) from None


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The bytes of a regular file. Raises OSError; UsageError for another kind of file or more than `max_bytes`."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: is not a regular file")
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise UsageError(f"{path}: has more than {max_bytes:,} bytes")
    return data


def read_json(path: str | Path, label: str, writer: str = "", max_bytes: int = _MOST_BYTES) -> Any:
    """The JSON of a file, which may be a device, a pipe, gigabytes or a million brackets. Raises UsageError.

    label: the name of the file in messages.
    writer: the command that writes such files.
    """
    file = Path(path)
    if writer and file.is_dir():
        raise UsageError(f"{label} is a folder; expected a file that {writer} wrote")
    try:
        data = read_bytes(file, max_bytes)
    except OSError as error:
        raise UsageError(f"{label}: {error.strerror or error}") from None
    return parse_json(data, label, writer)


def parse_json(data: bytes, label: str, writer: str = "") -> Any:
    """The JSON in the bytes of a file. Raises UsageError, as `read_json`."""
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise damaged_error(label, f"not JSON ({str(error)[:100]})", writer) from None


def damaged_error(label: str | Path, problem: str, writer: str = "") -> UsageError:
    """The error for a file with invalid content, in one line."""
    expected = f"; expected a file that {writer} wrote" if writer else ""
    return UsageError(f"{label}: damaged, {' '.join(printable(problem)[:_MOST_PROBLEM].split())}{expected}")


def _exists(file: Path) -> bool:
    """Like Path.exists, but raises OSError if it cannot be determined, as with a loop of links."""
    try:
        file.stat()
    except FileNotFoundError:
        return False
    return True


def _printing_descriptor(file: Path) -> int | None:
    """The standard descriptor of this process, 1 or 2, if it is open on this same file, such as /dev/stdout."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), file.stat()):
                return descriptor
    return None


def _append(target: Path | int, data: bytes, reader_seconds: float) -> None:
    # a duplicate: closing the stream must not close the standard output
    descriptor = os.dup(target) if isinstance(target, int) else _open_stream(target, reader_seconds)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


def _open_stream(path: Path, reader_seconds: float) -> int:
    """A descriptor of a device or a pipe. Waits for a reader of the pipe; raises OSError if none comes."""
    deadline = time.monotonic() + reader_seconds
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
            if time.monotonic() > deadline:
                raise OSError(errno.ENXIO, "no one reads from this pipe") from None
            time.sleep(0.05)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _replace_file(target: Path, data: bytes) -> None:
    try:
        _replace_atomically(target, data)
    except OSError as error:
        if error.errno not in _NOT_REPLACEABLE or not target.exists():
            raise
        target.write_bytes(data)


def _replace_atomically(target: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".packproof-", delete=False) as temporary:
        try:
            os.fchmod(temporary.fileno(), target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
            temporary.write(data)
            temporary.flush()
            os.replace(temporary.name, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary.name)
            raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
