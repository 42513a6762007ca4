"""The sizes that packs of the property `size` go past, and whether there is time for a call of such a size."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from packproof.base.errors import KernelFault
from packproof.properties.calling.call import TooSlow
from packproof.properties.judgement.kernel_under_test import KernelUnderTest

_FAR_ABOVE = 16
# far above the noise of a call's time beside others on the same GPU: what is extended to 2^32 elements is extended, too
_MEASURABLE_SECONDS = 0.5
_QUICK_SECONDS = 2.0  # a call of a fused kernel past 2^32 elements, with the copies around it


@dataclass(frozen=True)
class Limits:
    """Sizes that packs have to go past, and how the time of such a call is estimated."""

    sequences: int = 131_071
    """Twice the range of 16 bits, which is also the limit of the second and third axis of a grid."""
    tokens: int = 65_535 * 256
    """As many chunks, of up to 256 tokens, as these axes have programs."""
    history: int = 4097 * 4096
    """More tokens than `tokens`, in whole chunks."""
    elements: tuple[int, ...] = (2**32, 2**31)
    """The first that fits the memory counts."""
    fractions: tuple[int, ...] = (2**18, 2**15, 2**12, 2**9, 2**6, 2**3)
    """Of a size, the smallest first: these are timed until a call takes measurably longer than the first."""
    clock: Callable[[], float] = time.monotonic
    """Seconds now."""


def require_time(kernel: KernelUnderTest, limits: Limits, size: int, run: Callable[[int], object], note: str) -> None:
    """Raises TooSlow where a call of this size would take longer than a call may, or than is left for slow calls.

    A kernel that launches for each token, as PyTorch code does, would otherwise run into the time limit, and be started
    again, in each case. Its time is extended from two small sizes along a line. A call of a few seconds is always made:
    one of a fused kernel takes as long.
    """
    remaining = kernel.slow_calls_until - limits.clock()
    most_seconds = min(kernel.runner.time_limit, max(remaining, _QUICK_SECONDS))
    try:
        estimate = _estimated_seconds(most_seconds, limits, size, run)
    except KernelFault as fault:
        if fault.kind == "hung":
            raise TooSlow(f"too slow to be judged {note}: {fault}") from fault
        return  # the call of the whole size has it too, and reports it
    if estimate > most_seconds:
        share = "" if estimate > kernel.runner.time_limit else ", more than a third of the check"
        raise TooSlow(f"too slow to be judged {note}: it would take about {estimate:,.0f} s{share}")


def _estimated_seconds(most_seconds: float, limits: Limits, size: int, run: Callable[[int], object]) -> float:
    """Seconds of a call of a size, on the line through the times of the smallest size and the first much slower one.

    What every call costs, such as its fences, tells nothing of the size: two times that hardly differ give no estimate,
    but the next larger size, which is still quick.

    The shortest of three times counts: a first call may compile, and any may meet a busy machine. That one explains no
    estimate far above the limit, hence two times are enough there.
    """
    few, *larger = dict.fromkeys(max(size // fraction, 1) for fraction in limits.fractions)
    seconds_few = estimate = math.inf
    for more in larger:
        seconds_more = math.inf
        for repetition in range(3):
            seconds_few = min(seconds_few, _seconds(limits.clock, run, few))
            seconds_more = min(seconds_more, _seconds(limits.clock, run, more))
            difference = seconds_more - seconds_few
            estimate = seconds_more + (size - more) * difference / (more - few)
            is_far_above = repetition and estimate > _FAR_ABOVE * most_seconds
            if difference < _MEASURABLE_SECONDS or estimate <= most_seconds or is_far_above:
                break
        if difference >= _MEASURABLE_SECONDS:
            return estimate
    return estimate


def _seconds(clock: Callable[[], float], run: Callable[[int], object], size: int) -> float:
    start = clock()
    run(size)
    return clock() - start
