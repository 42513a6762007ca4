"""Wrong calls of the public API. Each is refused by packproof, in words that name the argument and the way out."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from packproof import CheckFailed, PackproofError


class Wrong(NamedTuple):
    """A wrong call, and the words that its error must have: the argument, what came, what was expected."""

    call: Callable[[], object]
    says: tuple[str, ...]


def assert_refused(wrong: Wrong) -> None:
    """The call raises packproof's own error with those words: no raw error, no silent pass, no verdict on a kernel."""
    with pytest.raises(PackproofError) as caught:
        wrong.call()
    assert not isinstance(caught.value, CheckFailed), f"the kernel was blamed: {caught.value}"
    message = str(caught.value)
    missing = [word for word in wrong.says if word not in message]
    assert not missing, f"{missing} not in {message!r}"
