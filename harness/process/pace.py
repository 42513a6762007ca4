"""The time of a kernel's calls by their size: it tells a slow call from one that hangs."""

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


def _work_of(call: Call) -> tuple[float, ...]:
    """What the time of ops follows: tokens; attention over all pairs of the pack, or over each sequence's own.

    Thousands of sequences of one token have many pairs of the first kind and few of the second.
    """
    tokens = tokens_of(call)
    return float(tokens), float(tokens**2), float(_pairs_of(call))


_GROWN = 4  # times the work of the smallest call: from there on a call tells how its time grows


@dataclass(frozen=True)
class _AnsweredCall:
    work: tuple[float, ...]
    seconds: float


@dataclass
class Pace:
    """How fast a kernel answered, with and without gradients."""

    _answered: dict[bool, list[_AnsweredCall]] = field(default_factory=lambda: {False: [], True: []})
    """The answered calls, by whether they were differentiated."""
    _too_slow: list[tuple[bool, tuple[float, ...]]] = field(default_factory=list)
    """The work of calls that were too slow, and whether they were differentiated."""

    def record(self, call: Call, seconds: float) -> None:
        """Add an answered call."""
        self._answered[bool(call.wrt)].append(_AnsweredCall(_work_of(call), seconds))

    def may_take_longer(self, call: Call, seconds: float) -> bool:
        """Whether this call may take longer than a number of seconds, by the calls that were answered.

        A call may take twice as long as the fastest ones let expect.
        """
        answered = self._answered[bool(call.wrt)]
        expected = [
            _growth([(done.work[k], done.seconds) for done in answered]) * work for k, work in enumerate(_work_of(call))
        ]
        return 2 * max(expected) > seconds

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


def _growth(calls: list[tuple[float, float]]) -> float:
    """The fewest seconds for a unit of work, beyond the time that any call takes; 0 as long as it is not known.

    A call of one token tells nothing of it: all its time may be the start of the call. Nor does a single larger one,
    which may have compiled.

    calls: work and seconds of each.
    """
    start = min((seconds for _, seconds in calls), default=0.0)
    least = min((work for work, _ in calls if work), default=1.0)
    growths = sorted((seconds - start) / work for work, seconds in calls if work >= _GROWN * least)
    return growths[0] if len(growths) > 1 else 0.0
