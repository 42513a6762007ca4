"""Which errors of a function are refusals of documents, and which are crashes."""

import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from packproof.base.importing import one_line_reason
from packproof.packers.documents import DocumentCase
from packproof.packers.packings import Declared, NoPacks

_NO_REFUSALS = (NameError, AttributeError, ZeroDivisionError, RecursionError)
"""Errors that no check of arguments raises: the function has a bug."""
_REFUSING = re.compile(r"\b(raise|assert)\b")


def is_refusal(error: Exception) -> bool:
    """Whether a statement raised it, in the function or in a library's Python: no operation failed.

    A list without its element or rows of unequal lengths raise an error where no argument was checked.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return not isinstance(error, _NO_REFUSALS) and (
        isinstance(error, AssertionError) or not frames[-1].line or bool(_REFUSING.search(frames[-1].line))
    )


def refusal_law(
    call: Callable[[Callable[..., Any], DocumentCase], object],
) -> Callable[[Callable[..., Any], DocumentCase, Declared], Iterator[str]]:
    """A longer document among those that fit is taken, left out or refused by a statement: no operation fails at it.

    Where none fits, there may be nothing to pack, as without documents.

    call: calls the function and reads all its packs.
    """

    def judge(function: Callable[..., Any], documents: DocumentCase, _: Declared) -> Iterator[str]:
        if min(documents.lengths, default=0) > documents.capacity or not documents.has_longer:
            return
        try:
            call(function, documents)
        except NoPacks:
            return  # packs that cannot be read break the other laws
        except Exception as error:
            if is_refusal(error):
                raise
            longest, capacity = max(documents.lengths), documents.capacity
            yield f"it crashed at a document of {longest} tokens, {capacity} fit: {one_line_reason(error)}"
            yield "a refusal is raised where the length is compared with the capacity, and names both"

    return judge
