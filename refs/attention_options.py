"""Checks of the options of attention: the cap of scores and the reach of a query."""

import math

from packproof.base.errors import ArgumentError


def check_softcap(softcap: float) -> None:
    """Raise ArgumentError unless softcap is a finite number of at least 0."""
    if isinstance(softcap, bool) or not isinstance(softcap, int | float) or not math.isfinite(softcap):
        raise ArgumentError(f"attention: softcap is {softcap!r} but a finite number was expected")
    if softcap < 0:
        raise ArgumentError(f"attention: softcap is {softcap!r} but a number above 0, or 0 for none, was expected")


def reaches(window_size: tuple[int, int], *, causal: bool) -> tuple[float, float]:
    """How far a query sees to the left and to the right, inf for no limit. Raises ArgumentError."""
    if (
        not isinstance(window_size, tuple | list)
        or len(window_size) != 2
        or not all(type(reach) is int and reach >= -1 for reach in window_size)
    ):
        raise ArgumentError(
            f"attention: window_size is {window_size!r} but (left, right) was expected; each 0 or more, -1 for no limit"
        )
    left_reach, right_reach = (math.inf if reach == -1 else reach for reach in window_size)
    return left_reach, 0 if causal else right_reach
