"""The time of a kernel's calls by their size: it tells a slow call from one that hangs."""

import math
from dataclasses import dataclass, field

from packproof.properties.calling import Call


def tokens_of(call: Call) -> int:
    """The tokens of a call, or its keys if they are more, in all copies."""
    rows = max(int(offsets[-1]) for offsets in call.metadata.values())
    return call.copies * rows + call.history


@dataclass
class Pace:
    """How fast a kernel answered, with and without gradients."""

    _seconds_per_pair: dict[bool, float] = field(default_factory=dict)
    """The fewest seconds for each pair of tokens in an answered call, by whether it was differentiated.

    Attention as written in the paper, the slowest of the ops, computes each pair. The fewest, since a first call may
    compile, and any call may meet a busy machine.
    """

    def record(self, call: Call, seconds: float) -> None:
        """Add an answered call."""
        if tokens := tokens_of(call):
            fewest = self._seconds_per_pair.get(bool(call.wrt), math.inf)
            self._seconds_per_pair[bool(call.wrt)] = min(fewest, seconds / tokens**2)

    def may_take_longer(self, call: Call, seconds: float) -> bool:
        """Whether this call may take longer, by the square of its tokens, than a number of seconds.

        A call may take twice as long as the fastest one lets expect.
        """
        return 2 * self._seconds_per_pair.get(bool(call.wrt), 0.0) * tokens_of(call) ** 2 > seconds
