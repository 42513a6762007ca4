"""`packproof peers` distinguishes what is promised, what is checked though not promised, and what is not offered."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from rich.console import Console

from packproof.adapters.peers import registry
from packproof.adapters.peers.registry import PEERS, Peer
from packproof.adapters.peers.torch import compiled_rope
from packproof.base.errors import UsageError
from packproof.cli import ending, main
from packproof.harness.check.replay import replay
from packproof.harness.check.request import CheckRequest
from packproof.harness.process.naming import location
from packproof.harness.report.events import Cell, Verdict
from packproof.proof.peers import board as boards
from packproof.proof.peers import run
from packproof.proof.peers.board import PeerBoard, verdict_text
from packproof.proof.peers.page import as_markdown
from packproof.proof.peers.report import PeersReport, board_rows
from packproof.proof.peers.run import check_peers, open_peers


class Row(NamedTuple):
    verdict: str
    layout: str
    replay: str


class Elsewhere(Peer):
    """A peer whose adapter is among the kernels of these tests."""

    @property
    def module(self) -> str:
        return "tests.adapters.kernels"


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers that are installed everywhere, and one that is missing."""
    there = [
        Elsewhere("other:multiplying", "causal_conv1d", "torch", ("torch",), cpu="all"),
        Elsewhere("other:unsteady", "causal_conv1d", "torch", ("torch",), cpu="all"),
        Elsewhere("other:channels_first", "causal_conv1d", "torch", ("torch",), cpu="all"),
        Elsewhere("other:refusing", "causal_conv1d", "torch", ("torch",), cpu="all"),
        Elsewhere("other:declaring", "causal_conv1d", "torch", ("torch",), cpu="all"),
        Peer("absent:ssd", "ssd", "no_such_module", ("absent",)),
        Peer("torch:varlen_attn", "attention", "torch", ("torch",)),
        Peer("torch:missing", "rope", "torch", ("torch",), cpu="all"),
        Peer("torch:unpacked", "rope", "torch", ("torch",), packed=False),
    ]
    found = {peer.name: peer for peer in there}
    for module in (registry, run, location):
        monkeypatch.setattr(module, "PEERS", found)


def request(tmp_path: Path, **fields: Any) -> CheckRequest:
    return CheckRequest(profile="quick", replay_dir=str(tmp_path), **fields)


def run_of(tmp_path: Path, names: Sequence[str], **fields: Any) -> PeerBoard:
    requested = request(tmp_path, **fields)
    entries = open_peers(requested, names)
    started, *_, finished = check_peers(requested, entries)
    return boards.make_board(entries, started, finished)  # type: ignore[arg-type]


def board(tmp_path: Path, names: Sequence[str], **fields: Any) -> dict[str, Row]:
    return {row[3]: Row(*row[4:]) for row in board_rows(run_of(tmp_path, names, **fields))}


@pytest.mark.proof
@pytest.mark.usefixtures("others")
def test_a_nan_leak_is_detected_despite_a_crash_on_an_empty_pack(tmp_path: Path) -> None:
    """A crash on an empty pack fails `metadata` only; NaN is checked besides what is promised."""
    found = board(tmp_path, ["other:multiplying"])
    verdicts = {law: row.verdict for law, row in found.items()}
    assert verdicts["isolation (NaN)"] == "does not hold"
    assert found["isolation (NaN)"].layout == "[1, 2]"
    assert (verdicts["metadata"], found["metadata"].layout) == ("FAILED", "[]")
    plain = ("reference", "packing", "isolation", "causality", "permutation", "determinism", "memory", "strides")
    assert {verdicts[law] for law in plain} == {"passed"}
    assert verdicts["determinism (same bits)"] == "holds"
    assert verdicts["carry"] == "not offered"
    assert verdicts["initial_states, activation, return_final_states, slack"] == "not offered"
    outcome = replay(found["isolation (NaN)"].replay)
    assert outcome.status == "failing"
    assert "with nan in the other sequences" in outcome.text


@pytest.mark.usefixtures("others")
def test_changing_bits_are_a_finding_not_a_broken_promise(tmp_path: Path) -> None:
    found = board(tmp_path, ["other:unsteady"], properties=("determinism",))
    verdicts = {law: row.verdict for law, row in found.items() if row.verdict != "not offered"}
    assert verdicts == {"determinism": "passed", "determinism (same bits)": "does not hold"}


@pytest.mark.usefixtures("others")
def test_calls_that_are_declined_are_not_passed(tmp_path: Path) -> None:
    found = board(tmp_path, ["other:channels_first"], properties=("reference",), dtypes=("float32", "float64"))
    assert found["reference"].verdict == "passed in its domain"
    assert found["initial_states, return_final_states, fp64"].verdict == "not offered"


@pytest.mark.usefixtures("others")
def test_a_peer_that_cannot_be_judged_has_a_reason(tmp_path: Path) -> None:
    reasons = {e.peer.name: e.reason for e in open_peers(request(tmp_path, dtypes=("float64",)), [])}
    assert reasons["absent:ssd"] == "not installed"
    assert reasons["torch:varlen_attn"] == "needs a GPU"
    assert reasons["torch:missing"].startswith("cannot be used here: ")
    assert reasons["other:multiplying"] == "takes fp32 only"
    assert "torch:unpacked" not in reasons


@pytest.mark.parametrize(
    ("fields", "names", "message"),
    [
        ({}, ["mamba:ssd"], "no peer is called 'mamba:ssd'; did you mean mamba_ssm:ssd"),
        ({"op": "conv"}, [], "no op is called 'conv'"),
        ({"op": "rope"}, ["mamba_ssm:ssd"], "--op: mamba_ssm:ssd computes ssd, not rope"),
        ({}, ["mamba_ssm:selective_scan_unpacked"], "does not keep sequences apart: it can be timed"),
        ({"profile": "fast"}, [], "no profile is called 'fast'"),
    ],
)
def test_an_invalid_call_is_one_line(fields: dict[str, Any], names: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_peers(CheckRequest(**fields), names)


@pytest.mark.parametrize(
    ("status", "reason", "refused", "beyond", "expected"),
    [
        ("passed", "", 0, "", "passed"),
        ("passed", "", 3, "", "passed, 3 of 9 declined"),
        ("passed", "", 0, "NaN", "holds"),
        ("failed", "", 0, "", "FAILED"),
        ("failed", "", 0, "NaN", "does not hold"),
        ("inconclusive", "the kernel refused every call", 9, "", "declined"),
        ("skipped", "the kernel does not take initial_states", 0, "", "not offered"),
        ("skipped", "rope has no state to carry", 0, "", "not applicable"),
        ("inconclusive", "out of time before it had a result", 0, "", "not reached"),
        ("inconclusive", "out of time: 2 examples of 9 reached", 2, "NaN", "not reached"),
        ("skipped", "9 of 9 examples are too large to be judged here: OutOfMemoryError", 0, "", "no memory"),
    ],
)
def test_what_was_not_judged_is_never_passed(
    status: Any, reason: str, refused: int, beyond: str, expected: str
) -> None:
    cell = Cell("rope", "a:b", "carry", "float32", "cpu", beyond)
    assert verdict_text(Verdict(cell, "eager", status, 9, 0.1, refused=refused, reason=reason)) == expected


@pytest.mark.usefixtures("others")
def test_a_run_that_ends_early_says_what_it_did_not_reach(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    options = ["--property", "reference", "--device", "cpu", "--max-time", "0.001", "--json", str(file)]
    assert main.run(["peers", "other:multiplying", "other:unsteady", *options]) == ending.INCONCLUSIVE
    found = boards.read_board(str(file))
    assert found.finished
    assert {row.verdict for row in found.rows} == {"not reached"}


@pytest.mark.usefixtures("others")
def test_the_scoreboard_in_a_terminal_as_data_and_as_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requested = request(tmp_path, properties=("isolation",))
    entries = open_peers(requested, ["other:multiplying", "absent:ssd"])
    console = Console(record=True, width=200, soft_wrap=True, file=(tmp_path / "out").open("w"))
    files = {kind: tmp_path / f"peers.{kind}" for kind in ("md", "json")}
    report = PeersReport(entries, markdown=str(files["md"]), json=str(files["json"]), console=console)
    ending.follow(check_peers(requested, entries), [report])
    text, page = console.export_text(), files["md"].read_text()
    version = PEERS["torch:jagged_sdpa"].version
    row = next(line.split() for line in text.splitlines() if "isolation (NaN)" in line and "does not hold" in line)
    assert row[:8] == ["other:multiplying", version, "causal_conv1d", "isolation", "(NaN)", "does", "not", "hold"]
    assert "not judged: absent:ssd: not installed" in text
    assert "not promised by the kernel: a finding, not a broken promise" in text
    assert f"| `other:multiplying` | {version} | causal_conv1d | 100 % |  | isolation (NaN) | 1 of 2 |" in page
    assert "| `other:multiplying` | isolation (NaN) | fp32 | [1, 2] | sequence " in page
    assert "Not judged: absent:ssd: not installed." in page
    found = [row for row in boards.read_board(str(files["json"])).rows if row.unpromised]
    assert [(r.peer, r.law, r.verdict, r.lengths) for r in found] == [
        ("other:multiplying", "isolation (NaN)", "does not hold", (1, 2))
    ]
    assert main.run(["peers", "--from", str(files["json"]), "--markdown", str(tmp_path / "again.md")]) == 0
    assert (tmp_path / "again.md").read_text() == page
    assert main.run(["peers", "--from", str(tmp_path / "out")]) == 2
    assert "damaged, not JSON (Extra data" in capsys.readouterr().err


def test_boards_are_joined_by_peer_and_say_where_each_was_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = boards.read_board("data/peers.json")
    first = replace(first, peers=tuple(replace(peer, judged_on="") for peer in first.peers))
    again = [peer for peer in first.peers if peer.peer in ("fla:ssd", "flash_attn:rope")]  # the second: not installed
    row = next(row for row in first.rows if row.peer == "fla:ssd")
    later = replace(first, date="2026-12-01", seconds=1.0, peers=tuple(again), rows=(replace(row, examples=12345),))
    files = [tmp_path / name for name in ("first.json", "later.json", "both.json", "both.md")]
    for file, board in zip(files, (first, later), strict=False):
        file.write_text(boards.as_json(board))
    both = [str(file) for file in files]
    assert main.run(["peers", "--from", ",".join(both[:2]), "--json", both[2], "--markdown", both[3]]) == 0
    found = boards.read_board(both[2])
    assert [peer.peer for peer in found.peers] == [peer.peer for peer in first.peers]
    assert [row.examples for row in found.rows if row.peer == "fla:ssd"] == [12345]
    assert len(found.rows) == sum(row.peer != "fla:ssd" for row in first.rows) + 1
    assert [(peer.peer, peer.judged_on) for peer in found.peers if peer.judged_on] == [("fla:ssd", later.judged_on)]
    assert f"\nfla:ssd: {later.judged_on}.\n" in files[3].read_text()
    files[1].write_text(boards.as_json(replace(later, seed=7)))
    assert main.run(["peers", "--from", ",".join(both[:2])]) == 2
    assert "cannot be one" in capsys.readouterr().err


@pytest.mark.usefixtures("others")
def test_the_share_of_golden_classes_counts_what_a_declaration_allows(tmp_path: Path) -> None:
    """A kernel that refuses what it does not declare is not judged there; one that declares it is judged on all."""
    names = ("other:refusing", "other:declaring")
    pair = [run_of(tmp_path, [name], properties=("reference",), dtypes=("float32",)) for name in names]
    [refusing], [declaring] = (board.rows for board in pair)
    assert refusing.classes < refusing.golden
    assert declaring.classes == declaring.golden > 0
    page = as_markdown(pair[0])
    assert f"| {100 * refusing.classes / refusing.golden:.0f} % (reference) |" in page
    assert "found: `length > 0`" in page


def test_no_peer_to_judge_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    absent = next(name for name, peer in PEERS.items() if not peer.installed and peer.packed)
    assert main.run(["peers", absent, "--device", "cpu"]) == 2
    assert capsys.readouterr().err == f"packproof: no peer can be judged here: {absent}: not installed\n"


def test_torch_kernels_are_judged_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "peers.json"
    options = ["--property", "reference", "--dtype", "fp32", "--profile", "quick", "--device", "cpu"]
    assert main.run(["peers", "torch:compiled_rope", *options, "--json", str(file)]) == 0
    assert [row.verdict for row in boards.read_board(str(file)).rows] == ["passed"]
    assert "torch:compiled_rope" in capsys.readouterr().out


def test_torch_rope_takes_an_empty_table() -> None:
    x, table, nothing = torch.ones(1, 2, 8), torch.zeros(0, 4), torch.zeros(1, dtype=torch.int32)
    assert torch.equal(compiled_rope(x, table, table, cu_seqlens=nothing), torch.zeros_like(x))
