"""Replacing a private name of Triton: only where it exists, and never silently otherwise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import triton

from packproof.refs.errors import PackproofError
from packproof.version import tried


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """Set `owner.name` to `make(original)`, return the original. Raises PackproofError where there is no such name."""
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
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """`replace` for the time of a with block."""
    original = replace(owner, name, make)
    try:
        yield
    finally:
        setattr(owner, name, original)
