"""The scoreboard of peers as data: the peers, and a row for each property and dtype. Its JSON file is the source of the
page."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date

from packproof.adapters.peers import PEERS
from packproof.base.environment import Environment, environment
from packproof.base.errors import UsageError
from packproof.base.names import FINDINGS, short_dtype
from packproof.base.records import read_record, to_json
from packproof.harness.check.targets import CheckTarget
from packproof.harness.report import RunFinished, RunStarted, Verdict
from packproof.proof.peers.run import PeerRequest, golden_classes
from packproof.properties.cases import Case, golden_cases, shorten
from packproof.version import __version__


@dataclass(frozen=True)
class BoardPeer:
    """A peer on the board."""

    peer: str
    """Its name, as `packproof list` shows it."""
    version: str
    op: str
    reason: str
    """Why it was not judged, "" if it was."""
    not_offered: tuple[str, ...]
    """Arguments of the op that it does not take."""
    domain: tuple[str, ...]
    """The conditions of the calls that it is declared to support."""
    judged_on: str = ""
    """Machine, versions and date of its run, "" if they are those of the board."""


@dataclass(frozen=True)
class BoardRow:
    """One property of one peer at one dtype."""

    peer: str
    law: str
    """The property, as tables name it."""
    unpromised: str
    """The label of the tested promise if the peer does not make it, such as "NaN"; "" for a promised property."""
    dtype: str
    verdict: str
    """The verdict in words."""
    examples: int
    """Examples drawn."""
    judged: int
    """Examples judged."""
    declined: int
    """Examples declined by the peer."""
    classes: int
    """Golden boundary classes judged."""
    golden: int
    """Golden boundary classes to judge."""
    seconds: float
    reason: str = ""
    """Why it did not simply pass."""
    refusals: tuple[str, ...] = ()
    """The peer's messages for the calls that it refused."""
    inferred: tuple[str, ...] = ()
    """The conditions of the domain inferred from its refusals."""
    lengths: tuple[int, ...] | None = None
    """The layout of the smallest failure, None if nothing failed."""
    lines: tuple[str, ...] = ()
    """The smallest failure as text."""
    replay: str = ""
    """The replay file of the smallest failure."""

    @property
    def failed(self) -> bool:
        return self.lengths is not None


@dataclass(frozen=True)
class PeerBoard:
    """One run over the peers, or several merged."""

    packproof: str
    """The version of packproof."""
    environment: Environment
    profile: str
    seed: int
    date: str
    """The day of the run, as ISO 8601."""
    seconds: float
    finished: bool
    """Whether the run reached its end."""
    peers: tuple[BoardPeer, ...]
    rows: tuple[BoardRow, ...]

    @property
    def judged_on(self) -> str:
        machine = self.environment
        driver = f", driver {machine.driver}" if machine.driver else ""
        versions = f"torch {machine.torch}, triton {machine.triton}, Python {machine.python}{driver}"
        return f"{machine.name}, {versions}, {self.date}"

    def peer_rows(self, peer: BoardPeer) -> Iterator[BoardRow]:
        return (row for row in self.rows if row.peer == peer.peer)

    def rows_by_law(self, peer: str) -> Iterator[tuple[str, list[BoardRow]]]:
        """Each property of a peer, with its rows."""
        laws: dict[str, list[BoardRow]] = {}
        for row in self.rows:
            if row.peer == peer:
                laws.setdefault(row.law, []).append(row)
        yield from laws.items()


def make_board(entries: Sequence[PeerRequest], run_started: RunStarted, run_finished: RunFinished) -> PeerBoard:
    """The board of a run, with rows in the order of its plan."""
    order = {cell: index for index, cell in enumerate(run_started.cells)}
    golden: dict[tuple[str, str, str], list[Case]] = {}

    def make_row(verdict: Verdict) -> BoardRow:
        cell = verdict.cell
        target, key = _find_target(verdict, entries), (cell.target, cell.unpromised, cell.dtype)
        if key not in golden:
            golden[key] = list(golden_cases(target.space(cell.dtype), run_started.seed))
        return _board_row(verdict, golden_classes(target, verdict, golden[key]))

    return PeerBoard(
        __version__,
        environment(run_started.cells[0].device),
        run_started.profile,
        run_started.seed,
        date.today().isoformat(),
        round(run_finished.seconds, 1),
        not run_finished.interrupted and not run_finished.error,
        tuple(map(_board_peer, entries)),
        tuple(map(make_row, sorted(run_finished.verdicts, key=lambda v: order.get(v.cell, -1)))),
    )


def _board_peer(entry: PeerRequest) -> BoardPeer:
    domain = entry.targets[0].declared.domain.texts if entry.targets else ()
    return BoardPeer(entry.peer.name, entry.version, entry.peer.op, entry.reason, entry.not_offered, domain)


def _find_target(verdict: Verdict, entries: Sequence[PeerRequest]) -> CheckTarget:
    cell = verdict.cell
    peer_targets = (target for entry in entries if entry.peer.name == cell.target for target in entry.targets)
    return next(
        t for t in peer_targets if t.unpromised == cell.unpromised and cell.property in (*t.request.laws, *FINDINGS)
    )


def _board_row(verdict: Verdict, golden: frozenset[str]) -> BoardRow:
    cell, failure = verdict.cell, verdict.failure
    return BoardRow(
        cell.target,
        cell.law,
        cell.unpromised,
        cell.dtype,
        verdict_text(verdict),
        verdict.examples,
        verdict.judged,
        verdict.refused,
        len(verdict.classes & golden),
        len(golden),
        round(verdict.seconds, 1),
        verdict.reason,
        tuple(dict.fromkeys(" ".join([limit.text.partition("\n")[0], limit.note]).strip() for limit in verdict.limits)),
        verdict.domain,
        failure.lengths if failure else None,
        failure.lines if failure else (),
        failure.replay if failure else "",
    )


_RUN_LIMITS = {
    "out of time": "not reached",
    "too large to be judged here": "no memory",
    "is not installed": "a module is missing",
}  # of a run, not of a kernel


def verdict_text(verdict: Verdict) -> str:
    """The verdict of a cell in words; never "passed" for a cell without judged examples."""
    if verdict.status == "failed":
        return "does not hold" if verdict.cell.unpromised else "FAILED"
    if verdict.status == "error":
        return "not judged: packproof itself failed"
    if not verdict.judged and (
        limit := next((wording for text, wording in _RUN_LIMITS.items() if text in verdict.reason), None)
    ):
        return limit
    if verdict.status == "skipped":
        untested = "not offered" if "does not take" in verdict.reason else "not applicable"
        return "declined" if verdict.refused or verdict.limits else untested
    if verdict.status == "inconclusive":
        return f"inconclusive, {verdict.judged} of {verdict.examples} judged" if verdict.judged else "declined"
    outcome = "holds" if verdict.cell.unpromised else "passed"
    outcome += " in its domain" if verdict.domain else ""
    return f"{outcome}, {verdict.refused} of {verdict.examples} declined" if verdict.refused else outcome


def dtype_verdicts(rows: Sequence[BoardRow]) -> str:
    """One verdict for all dtypes, or each verdict with its dtypes."""
    words: dict[str, list[str]] = {}
    for row in rows:
        words.setdefault(row.verdict, []).append(short_dtype(row.dtype))
    if len(words) == 1:
        return next(iter(words))
    return ", ".join(f"{text} ({', '.join(dtypes)})" for text, dtypes in words.items())


def smallest_layout(rows: Sequence[BoardRow]) -> str:
    """The smallest layout of the first failure."""
    return next((shorten(row.lengths) for row in rows if row.lengths is not None), "")


def replay_file(rows: Sequence[BoardRow]) -> str:
    return next((row.replay for row in rows if row.failed), "")


def merge_boards(boards: Sequence[PeerBoard]) -> PeerBoard:
    """Merge boards: a later board replaces the peers that it judged.

    Raises UsageError for boards of different versions of packproof, profiles or seeds.
    """
    base, *later = boards
    peers, rows = (
        {peer.peer: peer for peer in base.peers},
        {peer.peer: list(base.peer_rows(peer)) for peer in base.peers},
    )
    for board in later:
        board_key, base_key = ((b.packproof, b.profile, b.seed) for b in (board, base))
        if board_key != base_key:
            raise UsageError(f"--from: boards of packproof, profile and seed {base_key} and {board_key} cannot be one")
        for peer in board.peers:
            if not peer.reason or peer.peer not in peers:
                peers[peer.peer] = replace(
                    peer, judged_on=peer.judged_on or ("" if board.judged_on == base.judged_on else board.judged_on)
                )
                rows[peer.peer] = list(board.peer_rows(peer))
    order = sorted(peers, key=[*PEERS, *peers].index)
    return replace(
        base,
        seconds=round(sum(board.seconds for board in boards), 1),
        finished=all(board.finished for board in boards),
        peers=tuple(peers[name] for name in order),
        rows=tuple(row for name in order for row in rows[name]),
    )


def as_json(board: PeerBoard) -> str:
    return json.dumps(to_json(board), indent=1, ensure_ascii=False) + "\n"


def read_board(path: str) -> PeerBoard:
    """Read a scoreboard from a file. Raises UsageError if the file has none."""
    return read_record(PeerBoard, path, f"--from: {path}", "`packproof peers --json`", named=True)
