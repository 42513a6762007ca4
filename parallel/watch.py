"""Detects a dead or hanging rank and reports where it was last seen, before the others wait for it forever."""

from datetime import timedelta

from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import Store

from packproof.base.errors import ArgumentError, PackproofError, checked_init


@checked_init
class Watch:
    """Before each exchange a rank registers its arrival in the group's store and waits for the other ranks.

    Each exchange costs a few round trips to the store, and the host waits for all ranks. Use it in tests, or to find
    out where a job hangs. Pass the same watch to every `Shard` of a rank. Its attribute `lost` describes the missing
    ranks once an exchange has failed, and is "" until then.

    seconds: how long to wait.
    store: shared by all ranks; by default the group's.

    Raises PackproofError on the ranks present: the missing ranks, the exchange, and where they were last seen.

    >>> from packproof.parallel import Watch
    >>> Watch(seconds=30.0).seconds
    30.0
    """

    def __init__(self, seconds: float = 60.0, store: Store | None = None) -> None:
        if not seconds > 0:
            raise ArgumentError(f"Watch: seconds is {seconds!r}, expected a time above 0")
        self.seconds, self._store, self._count = seconds, store, 0
        self.lost = ""

    def arrive(self, group: ProcessGroup, exchange: str) -> None:
        """Wait until all ranks have reached this exchange."""
        self._count += 1
        store, rank = self._store_of(group), group.rank()
        keys = [self._key(self._count, r) for r in range(group.size())]
        try:
            store.set(f"packproof/at/{rank}", f"exchange {self._count}, {exchange}")
            store.set(keys[rank], "")
            store.wait(keys, timedelta(seconds=self.seconds))
            if self._count > 1:  # all ranks are here, so all have left the previous exchange
                store.delete_key(self._key(self._count - 1, rank))
        except RuntimeError as error:
            reason = f"{self._describe_absence(group, keys)} within {self.seconds:g} s"
            self.lost = f"rank {rank} of {group.size()}, exchange {self._count}, {exchange}: {reason}"
            raise PackproofError(self.lost) from error

    def missing(self, group: ProcessGroup) -> str:
        """Describe the ranks missing from the current exchange, and where they were last seen."""
        return self._missing_ranks(group, [self._key(self._count, rank) for rank in range(group.size())])

    def absent(self, group: ProcessGroup, seconds: float) -> str:
        """After a failure, called on every surviving rank: describe the ranks silent for `seconds`, and where they were
        last seen."""
        keys = [f"packproof/here/{rank}" for rank in range(group.size())]
        try:
            self._store_of(group).set(keys[group.rank()], "")
            self._store_of(group).wait(keys, timedelta(seconds=seconds))
        except RuntimeError:
            return self._describe_absence(group, keys)
        return ""

    def _missing_ranks(self, group: ProcessGroup, keys: list[str]) -> str:
        """Describe the ranks whose keys are not in the store; "" if all are."""
        store, absences = self._store_of(group), []
        for rank, key in enumerate(keys):
            if not store.check([key]):
                location_key = f"packproof/at/{rank}"
                location = store.get(location_key).decode() if store.check([location_key]) else "nowhere"
                absences.append(f"rank {rank} did not come (last seen at: {location})")
        return "; ".join(absences)

    def _describe_absence(self, group: ProcessGroup, keys: list[str]) -> str:
        try:
            return self._missing_ranks(group, keys) or "not all ranks came"
        except RuntimeError:
            return "the store is gone, and with it the rank that holds it; no answer"

    def _store_of(self, group: ProcessGroup) -> Store:
        return self._store or group.get_group_store()

    @staticmethod
    def _key(count: int, rank: int) -> str:
        return f"packproof/exchange/{count}/{rank}"
