"""The page of the scoreboard: a row for each peer, its limits, and a row for each property that does not hold."""

from collections.abc import Iterator, Sequence

from packproof.base.names import short_dtype
from packproof.base.wording import plural
from packproof.harness.report.formats import markdown_table, texts
from packproof.proof.peers.board import BoardPeer, BoardRow, PeerBoard, replay_file, smallest_layout
from packproof.properties.declarations import OF_PEERS

COMMAND = "packproof peers --from data/peers.json --markdown docs/peers_board.md"
_WIDEST = 160  # characters of what went wrong
_PASSED = ("passed", "holds")
_PEER_COLUMNS = texts("peer", "version", "op", "classes", "fails", "does not hold", "passed or holds")
_FAILURE_COLUMNS = texts("peer", "property", "dtypes", "smallest layout", "what", "replay")


def as_markdown(board: PeerBoard) -> str:
    return "\n".join(_page(board)) + "\n"


def legend() -> list[str]:
    """The explanation of the verdicts, one per line."""
    questions = "; ".join(f"({question.label}) {question.meaning}" for question in OF_PEERS)
    return [
        f"Checked though not promised by a peer: {questions}. If one does not hold, that is a finding, not a broken "
        "promise.",
        "Declined: the kernel or its adapter reports that it does not support the call. Not offered: it takes no such "
        "argument. Neither was judged. In its domain: judged on the calls that it was found to support. Not reached: "
        "the run ended before. No memory: each of its calls takes more than the machine had.",
    ]


def absent(peers: Sequence[BoardPeer]) -> list[str]:
    """The peers without a verdict, each with the reason."""
    return [f"{peer.peer}: {peer.reason}" for peer in peers if peer.reason]


def _page(board: PeerBoard) -> Iterator[str]:
    passed = sum(row.verdict.startswith(_PASSED) for row in board.rows)
    failed = sum(row.failed for row in board.rows)
    yield "# The scoreboard of peers\n"
    yield (
        f"`packproof peers` over the third-party kernels that could be installed: {plural(len(board.rows), 'cell')}, "
        f"{sum(row.examples for row in board.rows):,} examples, {board.seconds:.0f} s on one device. {passed} cells "
        f"passed or hold, {failed} do not, {len(board.rows) - passed - failed} were declined, do not apply, or could "
        f"not be judged. {'' if board.finished else 'The run did not reach its end. '}Made from `data/peers.json`, "
        f"which has every cell, by `{COMMAND}`. The findings that a script without packproof confirms are in "
        "[Findings in third-party kernels](peers.md); the others are as packproof reports them. A replay file runs one "
        "case again.\n"
    )
    yield f"{board.judged_on}. packproof {board.packproof}, profile {board.profile}, seed {board.seed}.\n"
    other_machines = dict.fromkeys(peer.judged_on for peer in board.peers if peer.judged_on and not peer.reason)
    for machine in other_machines:
        yield f"{', '.join(peer.peer for peer in board.peers if peer.judged_on == machine)}: {machine}.\n"
    yield from (f"{line}\n" for line in legend())
    yield (
        "*Classes*: of the golden boundary classes that the declaration of a peer allows, the share that was judged, "
        "for the property that has the least. One that failed is left out: it ends at its first failure.\n"
    )
    judged_peers = [peer for peer in board.peers if not peer.reason]
    yield from markdown_table(_PEER_COLUMNS, [_peer_cells(board, peer) for peer in judged_peers])
    if absent_peers := absent(board.peers):
        yield from ("", f"Not judged: {'; '.join(absent_peers)}.")
    yield "\n## What was not judged\n"
    for peer in judged_peers:
        if text := "; ".join(_limits(board, peer)):
            yield f"- **{peer.peer}**: {text}."
    if failed:
        yield "\n## What does not hold\n"
        yield from markdown_table(_FAILURE_COLUMNS, [row for peer in judged_peers for row in _failures(board, peer)])


def _peer_cells(board: PeerBoard, peer: BoardPeer) -> tuple[str, ...]:
    laws = dict(board.rows_by_law(peer.peer))
    violated = {law: _dtypes(rows) for law, rows in laws.items() if any(row.failed for row in rows)}
    promised = [f"{law}{dtypes}" for law, dtypes in violated.items() if not laws[law][0].unpromised]
    unpromised = [f"{law}{dtypes}" for law, dtypes in violated.items() if laws[law][0].unpromised]
    passed = sum(all(row.verdict.startswith(_PASSED) for row in rows) for rows in laws.values())
    names = f"`{peer.peer}`", peer.version, peer.op
    return (*names, _least_share(laws), ", ".join(promised), ", ".join(unpromised), f"{passed} of {len(laws)}")


def _dtypes(rows: Sequence[BoardRow]) -> str:
    """The failing dtypes in brackets, "" if all fail."""
    failed = [short_dtype(row.dtype) for row in rows if row.failed]
    return "" if len(failed) == len(rows) else f" ({', '.join(failed)})"


def share(row: BoardRow) -> float | None:
    """The judged share of the golden classes. None if there are none, or if a failure ended the property."""
    applies = row.verdict not in ("not applicable", "not offered")
    return row.classes / row.golden if row.golden and applies and not row.failed else None


def _least_share(laws: dict[str, list[BoardRow]]) -> str:
    """The least share, and its property."""
    shares = [(part, law) for law, rows in laws.items() for row in rows if (part := share(row)) is not None]
    if not shares:
        return ""
    part, law = min(shares)
    return "100 %" if part == 1 else f"{100 * part:.0f} % ({law})"


def _limits(board: PeerBoard, peer: BoardPeer) -> Iterator[str]:
    """The declared limits of a peer, its refusals, and the reasons for everything else without a verdict."""
    if peer.not_offered:
        yield f"not offered: {', '.join(peer.not_offered)}"
    if peer.domain:
        yield f"declared: `{'; '.join(peer.domain)}`"
    rows = [row for row in board.rows if row.peer == peer.peer]
    if inferred := dict.fromkeys(text for row in rows for text in row.inferred):
        yield f"found: `{'; '.join(inferred)}`"
    if refusals := dict.fromkeys(_short(text) for row in rows for text in row.refusals):
        yield f"refused: {', '.join(f'`{text}`' for text in refusals)}"
    undecided = [
        row for row in rows if not row.failed and not row.verdict.startswith(_PASSED) and row.verdict != "not offered"
    ]
    reasons = [_short(row.reason) for row in undecided if row.reason and row.verdict != "not applicable"]
    for reason in dict.fromkeys(reasons):
        laws = ", ".join(dict.fromkeys(row.law for row in undecided if _short(row.reason) == reason))
        yield f"{laws}: {reason}"


def _failures(board: PeerBoard, peer: BoardPeer) -> Iterator[tuple[str, ...]]:
    """A row for each violated property of a peer."""
    for law, rows in board.rows_by_law(peer.peer):
        if failed_rows := [row for row in rows if row.failed]:
            dtypes = ", ".join(short_dtype(row.dtype) for row in failed_rows)
            lines = failed_rows[0].lines
            error = _short(next(iter([*lines[1:], *lines]), ""))
            file = replay_file(failed_rows)
            yield f"`{peer.peer}`", law, dtypes, smallest_layout(failed_rows), error, f"`{file}`" if file else ""


def _short(text: str) -> str:
    """One line of a table."""
    line = " ".join(text.replace("|", "/").replace("`", "'").split())
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 3]}..."
