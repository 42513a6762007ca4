"""Replaces private names of Triton. A missing name is an error, never ignored."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import triton

from packproof.base.errors import PackproofError
from packproof.version import tried


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """Set `owner.name` to `make(original)` and return the original. Raises PackproofError if the name is missing."""
    try:
        original = owner.__dict__[name]
    except KeyError:
        raise PackproofError(
            f"packproof does not know triton {triton.__version__}: {getattr(owner, '__name__', owner)} has no {name}. "
            f"Use triton {tried('triton')}, or check on a GPU."
        ) from None
    setattr(owner, name, make(original))
    return original


@contextmanager
def temporary_replacement(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """`replace` for the duration of a with block."""
    original = replace(owner, name, make)
    try:
        yield
    finally:
        setattr(owner, name, original)
