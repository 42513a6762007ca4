"""The scoreboard of peers: verdicts on the terminal as they come, and files at the end."""

import itertools
from collections.abc import Iterator, Sequence

from rich.console import Console

from packproof.base.files import replace_text, writable_path
from packproof.base.wording import plural
from packproof.harness.report import CellFinished, Event, RunFinished, RunStarted
from packproof.harness.report.formats import cell_line, fitted_table, texts
from packproof.harness.report.wording import failure_text, limits_lines, summary
from packproof.proof.peers.board import PeerBoard, as_json, dtype_verdicts, make_board, replay_file, smallest_layout
from packproof.proof.peers.page import absent, as_markdown, legend
from packproof.proof.peers.run import PeerRequest

_COLUMNS = texts("peer", "version", "op", "property", "verdict", "smallest layout", "replay")


class PeersReport:
    """Prints each verdict as it comes, then the scoreboard; also writes the scoreboard to files.

    Raises UsageError at once if a file cannot be written.
    """

    def __init__(
        self, entries: Sequence[PeerRequest], *, markdown: str | None, json: str | None, console: Console | None = None
    ) -> None:
        self._entries = entries
        self._markdown = writable_path(markdown, "--markdown") if markdown else None
        self._json = writable_path(json, "--json") if json else None
        self._console = console or Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._started: RunStarted | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._started = event
                self._console.print(f"{plural(len(event.cells), 'cell')}, profile {event.profile}, seed {event.seed}")
            case CellFinished(verdict):
                self._console.print(f"{verdict.cell.target:<30}", cell_line(verdict), sep=" ")
            case RunFinished() if self._started:
                self._finish(self._started, event)

    def _finish(self, started: RunStarted, finished: RunFinished) -> None:
        board = make_board(self._entries, started, finished)
        if self._json:
            replace_text(self._json, as_json(board))
        if self._markdown:
            replace_text(self._markdown, as_markdown(board))
        for verdict in finished.verdicts:
            if verdict.failure:
                self._console.print(f"\n{failure_text(verdict)}")
        self._console.print("\n" + "\n".join(fitted_table(_COLUMNS, list(board_rows(board)))))
        for entry in self._entries:
            limits = limits_lines([v for v in finished.verdicts if v.cell.target == entry.peer.name])
            for line in itertools.islice(limits, 1, None):
                self._console.print(f"{entry.peer.name}:{line[1:]}")
        for line in ["", *legend(), "", *(f"not judged: {line}" for line in absent(board.peers))]:
            self._console.print(line)
        self._console.print(summary(finished, sum(cell.counts for cell in started.cells)))


def board_rows(board: PeerBoard) -> Iterator[tuple[str, ...]]:
    """A row for each property of each peer, and one for the arguments that the peer does not take."""
    for peer in board.peers:
        names = peer.peer, peer.version, peer.op
        for law, rows in board.rows_by_law(peer.peer):
            yield (*names, law, dtype_verdicts(rows), smallest_layout(rows), replay_file(rows))
        if peer.not_offered and not peer.reason:
            yield (*names, ", ".join(peer.not_offered), "not offered", "", "")
