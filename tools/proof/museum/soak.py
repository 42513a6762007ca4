"""A soak of the judge: hundreds of submissions, side by side and with little memory, in a throwaway root.

Each is a `packproof check --isolate` of its own, as a judge would start it. No verdict may change, no process be left,
and no file outside of the folder of the run be another one.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packproof.base.records import RecordError, from_json
from packproof.base.wording import plural
from packproof.proof.museum.file_digest import has_changed_since
from packproof.proof.museum.memory_group import memory_group
from packproof.proof.museum.soak_play import Play, Remains
from packproof.proof.museum.throwaway_root import environment, throwaway_root

_MEMORY, _PROCESSES = 4 << 30, 4096  # of the whole soak
_MOST_CHANGES = 20  # in lines
_SPARE_SECONDS = 300  # for its start, and for the digests of all folders before and after
_PLAY = "packproof.proof.museum.soak_play"


@dataclass(frozen=True)
class SoakResult:
    """What a soak has seen."""

    plays: Sequence[Play]
    """The submissions that were checked until the end."""
    changes: tuple[str, ...]
    """What is not as it was around the run: folders, a neighbour's process, its services."""
    others_changes: tuple[str, ...]
    """Folders that changed on the machine itself meanwhile: other programs did, or a kernel that left its root."""
    processes: tuple[int, ...]
    """Those that were left."""
    kills: int
    """Processes that the system ended for want of memory."""
    seconds: float
    n_least: int = 0
    """How many submissions had to be checked."""
    is_complete: bool = True
    """Whether it ended by itself, and has looked for changes and processes."""

    @property
    def wrong_codes(self) -> list[str]:
        """The submissions with another exit code than is right, each with it."""
        return [f"{p.name} ({p.kind}): {p.code}" for p in self.plays if not (p.is_right or p.lacked_memory)]

    @property
    def holds(self) -> bool:
        """Whether nothing changed."""
        return self.is_complete and not (self.wrong_codes or self.changes or self.processes)

    @property
    def is_conclusive(self) -> bool:
        """Whether every submission was judged, and enough of them were."""
        return len(self.plays) >= self.n_least and not any(play.lacked_memory for play in self.plays)


def run_soak(seconds: float, n_least: int, seed: int) -> SoakResult:
    """Play submissions for this long.

    n_least: how many are to be checked in this time.

    Raises ThrowawayRootError or NoControlGroupError where it cannot be run here.
    """
    start, wall_start = time.monotonic(), time.time()
    with throwaway_root() as prefix, memory_group(_MEMORY, _PROCESSES) as group:
        with subprocess.Popen(
            [*prefix, sys.executable, "-P", "-m", _PLAY, str(seconds), str(seed)],
            env={**environment(), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            preexec_fn=group.join,  # noqa: PLW1509  (this process has no other thread)
            text=True,
        ) as process:
            try:
                text, _ = process.communicate(timeout=seconds + _SPARE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()  # all in its namespace end with it
                text, _ = process.communicate()
        remaining_pids, kills = group.members(), group.kills()
    plays, remains = _read_lines(text.splitlines())
    changes = remains.changes if remains else ()
    others = tuple(name for name in changes if name.startswith("/") and has_changed_since(Path(name), wall_start))
    return SoakResult(
        plays,
        tuple(name for name in changes if name not in others),
        others,
        (*(remains.processes if remains else ()), *remaining_pids),
        kills,
        time.monotonic() - start,
        n_least,
        remains is not None,
    )


def _read_lines(lines: Sequence[str]) -> tuple[list[Play], Remains | None]:
    """What `soak_play` has printed; no `Remains` if it was ended before."""
    plays: list[Play] = []
    for line in lines:
        with suppress(ValueError, RecordError):  # the last line of one that was ended
            record: Play | Remains = from_json(Play | Remains, json.loads(line))
            if isinstance(record, Remains):
                return plays, record
            plays.append(record)
    return plays, None


def soak_lines(result: SoakResult) -> Iterator[str]:
    """A soak in words."""
    yield from (f"another exit code than alone: {text}" for text in result.wrong_codes)
    unjudged = [play.name for play in result.plays if play.lacked_memory]
    yield from (f"not judged, since the machine lacked memory: {name}" for name in unjudged)
    yield from (f"changed: {name}" for name in result.changes[:_MOST_CHANGES])
    yield from (f"changed on the machine itself, by others: {name}" for name in result.others_changes[:_MOST_CHANGES])
    yield from (f"left running: process {pid}" for pid in result.processes)
    if not result.is_complete:
        yield "it did not end by itself: what it left and changed is not known"
    if len(result.plays) < result.n_least:
        yield f"only {len(result.plays)} of {plural(result.n_least, 'submission')} were checked in this time"
    counts = ", ".join(f"{n} {kind}" for kind, n in sorted(Counter(play.kind for play in result.plays).items()))
    yield (
        f"{plural(len(result.plays), 'submission')} ({counts}) in {result.seconds:.0f} s, "
        f"{plural(result.kills, 'time')} out of memory: {plural(len(result.wrong_codes), 'verdict')} changed, "
        f"{plural(len(result.changes), 'place')} changed, processes left: {len(result.processes)}"
    )
