"""The scoreboard of peers: peer, version, op, property, verdict, smallest layout, replay file; text, Markdown, JSON."""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from packproof.harness.peers.run import PeerRequest
from packproof.harness.reports.terminal import cell_line
from packproof.harness.results import events
from packproof.harness.results.conclusions import limits_lines
from packproof.harness.results.environment import environment
from packproof.harness.results.files import replace_text, writable
from packproof.harness.results.names import short
from packproof.harness.results.questions import OF_PEERS
from packproof.harness.results.wording import failure_text, summary
from packproof.properties.cases.case import shorten
from packproof.refs.wording import counted
from packproof.version import __version__

HEAD = ("peer", "version", "op", "property", "verdict", "smallest layout", "replay")
VERSION = 1


@dataclass(frozen=True)
class BoardRow:
    """One property of one peer, over all its dtypes. verdict: in words. failure: that of the first failing dtype."""

    peer: str
    version: str
    op: str
    law: str
    verdict: str
    failure: events.Verdict | None = None

    @property
    def layout(self) -> str:
        found = self.failure and self.failure.failure
        return shorten(found.lengths) if found else ""

    @property
    def replay(self) -> str:
        found = self.failure and self.failure.failure
        return found.replay if found else ""

    @property
    def cells(self) -> tuple[str, ...]:
        return (self.peer, self.version, self.op, self.law, self.verdict, self.layout, self.replay)


def rows(entries: Sequence[PeerRequest], verdicts: Sequence[events.Verdict]) -> Iterator[BoardRow]:
    """The scoreboard, peer by peer, with a separate row for what a peer does not offer."""
    for entry in entries:
        names = (entry.peer.name, entry.version, entry.peer.op)
        laws: dict[str, list[events.Verdict]] = {}
        for verdict in verdicts:
            if verdict.cell.target == entry.peer.name:
                laws.setdefault(verdict.cell.law, []).append(verdict)
        for law, found in laws.items():
            yield BoardRow(*names, law, _verdict(found), next((v for v in found if v.status == "failed"), None))
        if entry.targets and entry.offers_no:
            yield BoardRow(*names, ", ".join(entry.offers_no), "not offered")


def _verdict(found: Sequence[events.Verdict]) -> str:
    """One verdict for all dtypes, or each verdict with its dtypes."""
    words: dict[str, list[str]] = {}
    for verdict in found:
        words.setdefault(word(verdict), []).append(short(verdict.cell.dtype))
    if len(words) == 1:
        return next(iter(words))
    return ", ".join(f"{text} ({', '.join(dtypes)})" for text, dtypes in words.items())


def word(verdict: events.Verdict) -> str:
    """The verdict of a cell in words; never "passed" if it was not judged."""
    if verdict.status == "failed":
        return "does not hold" if verdict.cell.beyond else "FAILED"
    if verdict.status == "error":
        return "not judged: packproof itself failed"
    if verdict.status == "skipped":
        untested = "not offered" if "does not take" in verdict.reason else "not applicable"
        return "declined" if verdict.refused else untested
    if verdict.status == "inconclusive":
        return f"inconclusive, {verdict.judged} of {verdict.examples} judged" if verdict.judged else "declined"
    held = "holds" if verdict.cell.beyond else "passed"
    held += " in its domain" if verdict.domain else ""
    return f"{held}, {verdict.refused} of {verdict.examples} declined" if verdict.refused else held


def legend() -> list[str]:
    """The explanation of the verdicts, one per line."""
    questions = "; ".join(f"({question.word}) {question.meaning}" for question in OF_PEERS)
    return [
        f"Checked though not promised by a peer: {questions}. If one does not hold, that is a finding, not a broken "
        "promise.",
        "Declined: the kernel or its adapter reports that it does not support the call. Not offered: it takes no such "
        "argument. Neither was judged. In its domain: judged on the calls that it was found to support.",
    ]


def absent(entries: Sequence[PeerRequest]) -> list[str]:
    """The peers that were not judged, each with the reason."""
    return [f"{entry.peer.name}: {entry.reason}" for entry in entries if not entry.targets]


class PeersReport:
    """Prints each verdict as it is found, then the scoreboard; also writes the scoreboard to files.

    Raises UsageError at once if a file cannot be written.
    """

    def __init__(
        self, entries: Sequence[PeerRequest], *, markdown: str | None, json: str | None, console: Console | None = None
    ) -> None:
        self._entries = entries
        self._markdown = writable(markdown, "--markdown") if markdown else None
        self._json = writable(json, "--json") if json else None
        self._console = console or Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._started: events.RunStarted | None = None

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.RunStarted():
                self._started = event
                self._console.print(f"{counted(len(event.cells), 'cell')}, profile {event.profile}, seed {event.seed}")
            case events.CellFinished(verdict):
                self._console.print(f"{verdict.cell.target:<30}", cell_line(verdict), sep=" ")
            case events.RunFinished() if self._started:
                self._finish(self._started, event)

    def _finish(self, started: events.RunStarted, finished: events.RunFinished) -> None:
        order = {cell: place for place, cell in enumerate(started.cells)}
        verdicts = sorted(finished.verdicts, key=lambda v: order[v.cell])
        board = list(rows(self._entries, verdicts))
        for row in board:
            if row.failure:
                self._console.print(f"\n{failure_text(row.failure)}")
        self._console.print("\n" + "\n".join(aligned([HEAD, *(row.cells for row in board)])))
        for entry in self._entries:
            found = limits_lines([v for v in verdicts if v.cell.target == entry.peer.name])
            for line in itertools.islice(found, 1, None):
                self._console.print(f"{entry.peer.name}:{line[1:]}")
        for line in ["", *legend(), "", *(f"not judged: {line}" for line in absent(self._entries))]:
            self._console.print(line)
        self._console.print(summary(finished, sum(cell.counts for cell in started.cells)))
        if self._markdown:
            replace_text(self._markdown, "\n".join(markdown(started, self._entries, board, verdicts)) + "\n")
        if self._json:
            data = document(started, finished, self._entries, verdicts)
            replace_text(self._json, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """The rows with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(f"{x:<{width}}" for x, width in zip(row, widths, strict=True)).rstrip() for row in table]


def markdown(
    started: events.RunStarted,
    entries: Sequence[PeerRequest],
    board: Sequence[BoardRow],
    verdicts: Sequence[events.Verdict],
) -> Iterator[str]:
    """The page of docs/: the machine, the scoreboard, what is refused, and each failure in full."""
    yield "# Third-party kernels, checked\n"
    yield f"{_where(started)}. packproof {__version__}, profile {started.profile}, seed {started.seed}.\n"
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{' --- |' * len(HEAD)}"
    for row in board:
        *text, replay = row.cells
        yield f"| {' | '.join(text)} | {f'`{replay}`' if replay else ''} |"
    yield ""
    yield from (f"{line}\n" for line in legend())
    yield from (f"- not judged: {line}" for line in absent(entries))
    refused = {e.peer.name: list(limits_lines([v for v in verdicts if v.cell.target == e.peer.name])) for e in entries}
    if any(refused.values()):
        yield "\n## Refused calls\n\n```"
        yield "\n".join(f"{name}: {line}" for name, lines in refused.items() for line in lines[1:])
        yield "```"
    failures = [row.failure for row in board if row.failure]
    if failures:
        yield "\n## Failures\n\n```"
        yield "\n\n".join(map(failure_text, failures))
        yield "```"


def _where(started: events.RunStarted) -> str:
    here = environment(started.cells[0].device)
    driver = f", driver {here.driver}" if here.driver else ""
    return f"{here.name}, torch {here.torch}, triton {here.triton}, Python {here.python}{driver}"


def document(
    started: events.RunStarted,
    finished: events.RunFinished,
    entries: Sequence[PeerRequest],
    verdicts: Sequence[events.Verdict],
) -> dict[str, Any]:
    """The scoreboard as JSON data: every peer, and a row for each property and dtype."""
    peers = {entry.peer.name: entry for entry in entries}
    return {
        "version": VERSION,
        "packproof": __version__,
        "environment": dataclasses.asdict(environment(started.cells[0].device)),
        "profile": started.profile,
        "seed": started.seed,
        "finished": not finished.interrupted and not finished.error,
        "peers": [
            {
                "peer": entry.peer.name,
                "version": entry.version,
                "op": entry.peer.op,
                "judged": bool(entry.targets),
                "reason": entry.reason,
                "not_offered": list(entry.offers_no),
            }
            for entry in entries
        ],
        "rows": [_row(verdict, peers[verdict.cell.target].version) for verdict in verdicts],
    }


def _row(verdict: events.Verdict, version: str) -> dict[str, Any]:
    cell, failure = verdict.cell, verdict.failure
    return {
        "peer": cell.target,
        "version": version,
        "op": cell.op,
        "property": cell.property,
        "beyond": cell.beyond,
        "dtype": cell.dtype,
        "device": cell.device,
        "tier": verdict.tier,
        "verdict": word(verdict),
        "examples": verdict.examples,
        "declined": verdict.refused,
        "reason": verdict.reason,
        "lengths": list(failure.lengths) if failure else None,
        "message": failure_text(verdict) if failure else "",
        "replay": failure.replay if failure else "",
    }
