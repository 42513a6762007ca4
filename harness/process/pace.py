"""The time of a kernel's calls by their size: it tells a slow call from one that hangs."""

import math
from dataclasses import dataclass, field

from packproof.properties.calling import Call


def tokens_of(call: Call) -> int:
    """The tokens of a call, or its keys if they are more, in all copies."""
    rows = max(int(offsets[-1]) for offsets in call.metadata.values())
    return call.copies * rows + call.history


def _pairs_of(call: Call) -> int:
    """The pairs of a query and a key of its own sequence, in all copies."""
    lengths = [offsets.long().diff() for offsets in call.metadata.values()]
    for packing in lengths:
        packing[:1] += call.history
    return call.copies * int((lengths[0] * lengths[-1]).sum())


def _work_of(call: Call) -> tuple[float, float]:
    """What the time of the slowest ops follows: attention over all pairs of the pack, and over each sequence's own.

    Thousands of sequences of one token have many pairs of the first kind and few of the second.
    """
    return float(tokens_of(call) ** 2), float(_pairs_of(call))


@dataclass
class Pace:
    """How fast a kernel answered, with and without gradients."""

    _rates: dict[bool, tuple[float, ...]] = field(default_factory=dict)
    """The fewest seconds for a unit of each kind of work in an answered call, by whether it was differentiated.

    The fewest, since a first call may compile, and any call may meet a busy machine.
    """
    _too_slow: list[tuple[bool, tuple[float, ...]]] = field(default_factory=list)
    """The work of calls that were too slow, and whether they were differentiated."""

    def record(self, call: Call, seconds: float) -> None:
        """Add an answered call."""
        rates = tuple(seconds / work if work else math.inf for work in _work_of(call))
        known = self._rates.get(bool(call.wrt), rates)
        self._rates[bool(call.wrt)] = tuple(map(min, known, rates))

    def may_take_longer(self, call: Call, seconds: float) -> bool:
        """Whether this call may take longer than a number of seconds, by some kind of its work.

        A call may take twice as long as the fastest ones let expect.
        """
        rates = self._rates.get(bool(call.wrt), ())
        expected = [rate * work for rate, work in zip(rates, _work_of(call), strict=False) if work]
        return 2 * max(expected, default=0.0) > seconds

    def record_too_slow(self, call: Call) -> None:
        """Add a call that was given up for its size."""
        self._too_slow.append((bool(call.wrt), _work_of(call)))

    def is_too_slow(self, call: Call) -> bool:
        """Whether it has at least the work of a call that was too slow."""
        if not self._too_slow:  # nearly always: every call asks
            return False
        work, differentiated = _work_of(call), bool(call.wrt)
        return any(
            differentiated >= backward and all(x >= y for x, y in zip(work, other, strict=True))
            for backward, other in self._too_slow
        )
