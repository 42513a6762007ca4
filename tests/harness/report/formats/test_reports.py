"""The reports, fed with a handmade stream of events: their exact text."""

import io
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from packproof.base.errors import UsageError
from packproof.harness.report.events import (
    Cell,
    CellFinished,
    CellStarted,
    Event,
    Failure,
    Progress,
    RunFinished,
    RunStarted,
    Verdict,
)
from packproof.harness.report.formats.json_file import JsonReport, digest
from packproof.harness.report.formats.junit import JunitReport
from packproof.harness.report.formats.terminal import TerminalReport
from packproof.harness.report.wording.results import failure_text
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.case import REGIME_DESCRIPTIONS
from packproof.properties.cases.layouts import BOUNDARY_CLASSES
from packproof.properties.laws.violation import Violation


def cell(prop: str, dtype: str, op: str = "ssd", target: str = "my_kernels:ssd_fwd") -> Cell:
    return Cell(op, target, prop, dtype, "cuda")


LEAK = Failure(
    lengths=(16, 1),
    tensor="gradient of B",
    lines=(
        "sequence 1, token 0: got -0.4121, alone 0.8837; 212 x the budget (accumulation)",
        "B's gradient in sequence 1 contains sequence 0",
    ),
    example=3,
    cases_tried=41,
    replay=".packproof/ssd-packing-5e1c.json",
)
DRAWN = frozenset(BOUNDARY_CLASSES[:-2])
PASSED = Verdict(
    cell("reference", "bfloat16"),
    "gpu",
    "passed",
    120,
    1.25,
    judged=118,
    refused=2,
    classes=DRAWN,
    possible_classes=frozenset(BOUNDARY_CLASSES),
)
FAILED = Verdict(
    cell("packing", "bfloat16"),
    "gpu",
    "failed",
    3,
    2.5,
    judged=3,
    classes=DRAWN,
    possible_classes=frozenset(BOUNDARY_CLASSES),
    failure=LEAK,
)
SKIPPED = Verdict(cell("carry", "bfloat16"), "gpu", "skipped", 0, 0.0, reason="the kernel takes no initial state")
EXPECTED = replace(FAILED, status="expected", reason="expected: issue 12")
STALE = Verdict(
    FAILED.cell, "gpu", "stale", 9, 1.0, judged=9, failure=Failure((), "", ("it holds", "remove entry 1"), 0, 0)
)
CELLS = (PASSED.cell, FAILED.cell, SKIPPED.cell)


def stream(*verdicts: Verdict, interrupted: bool = False, error: str = "") -> list[Event]:
    """The events of a run that planned CELLS and reached these verdicts."""
    events: list[Event] = [RunStarted(CELLS, "standard", 7)]
    for verdict in verdicts:
        events += [CellStarted(verdict.cell), Progress(verdict.cell, 1), CellFinished(verdict)]
    return [*events, RunFinished(verdicts, 4.0, interrupted, error)]


def terminal(events: list[Event], *, is_terminal: bool = False, quiet: bool = False, width: int = 120) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        force_terminal=is_terminal,
        color_system=None,
        highlight=False,
        markup=False,
        soft_wrap=True,
        width=width,
    )
    report = TerminalReport(console, quiet=quiet)
    for event in events:
        report(event)
    return out.getvalue()


FAILURE_BLOCK = """\
ssd · my_kernels:ssd_fwd · FAILED  packing (gradient of B)   bf16, gpu
    lengths [16, 1]                  found in example 3, smallest of 41 tried
    sequence 1, token 0: got -0.4121, alone 0.8837; 212 x the budget (accumulation)
    B's gradient in sequence 1 contains sequence 0
    packproof replay .packproof/ssd-packing-5e1c.json"""

TERMINAL = f"""\
3 cells, profile standard, seed 7
passed   ssd reference bf16                   gpu        judged 118 of 120, 2 refused, 1.2 s
failed   ssd packing bf16                     gpu        3 examples, 2.5 s

{FAILURE_BLOCK}


ssd · my_kernels:ssd_fwd · cuda
             bf16     tier             judged  seconds
  reference  passed   gpu          118 of 120      1.2
  packing    failed   gpu                   3      2.5
  1 skipped: carry (the kernel takes no initial state)
  25 of 27 layout classes judged

a property does not hold: 1 failed, 1 passed, 1 skipped; 121 of 123 examples judged in 4.0 s
"""


def test_failure_text() -> None:
    assert failure_text(FAILED) == FAILURE_BLOCK


def test_failure_without_layout_or_replay() -> None:
    spill = Failure((), "", ("fwd-float32-w4 spills 12 registers on sm_90",), 0, 0)
    verdict = Verdict(cell("compile", "float32"), "compile", "failed", 4, 1.0, failure=spill)
    assert failure_text(verdict) == (
        "ssd · my_kernels:ssd_fwd · FAILED  compile   fp32, compile\n    fwd-float32-w4 spills 12 registers on sm_90"
    )


def test_the_same_exception_in_several_cells_is_one_block() -> None:
    def fault(prop: str, *lengths: int) -> Verdict:
        text = f"ValueError: odd, got {sum(lengths)} (mine.py:3)"
        found = Failure(lengths, "", ("fp32, d=3, seed 0", text), 1, 2)
        return Verdict(cell(prop, "float32"), "gpu", "failed", 3, 2.5, judged=3, failure=found)

    shown = terminal(stream(fault("carry", 7), fault("reference", 5, 3), fault("packing", 1)))
    assert shown.count("ValueError: odd") == 1
    assert (  # that of the strongest property
        "    ValueError: odd, got 8 (mine.py:3)\n    the same in 3 cells: carry fp32; reference fp32; packing fp32"
        in shown
    )


def test_the_data_regime_of_a_failure_is_explained_once_and_normal_data_never() -> None:
    def wrong(prop: str, regime: str) -> Verdict:
        found = Failure((5,), "y", ("sequence 0, token 1: got 1, reference 2",), 1, 2, regime=regime)
        return Verdict(cell(prop, "float32"), "gpu", "failed", 3, 2.5, judged=3, failure=found)

    assert (
        terminal(stream(wrong("reference", "cancelling"), wrong("carry", "cancelling"))).count(
            f"cancelling: {REGIME_DESCRIPTIONS['cancelling']}"
        )
        == 1
    )
    assert "normal:" not in terminal(stream(wrong("reference", "normal")))


def test_numbers_that_differ_are_shown_with_enough_digits() -> None:
    found = Violation(
        TensorKey("y"), 0, 1, (2,), 1.0980001, 1.098, "alone", 1.29, "rounding 1e-7", expected=1.0980001, allowed=1e-9
    )
    assert found.lines()[0].startswith(
        "sequence 0, token 1, element [2]: got 1.0980001, alone 1.098; 1.29 x the budget"
    )
    assert found.lines()[1] == "reference 1.0980001: alone is incorrect, packed is correct"


def test_plain_terminal() -> None:
    assert terminal(stream(PASSED, FAILED, SKIPPED)) == TERMINAL


def test_a_terminal_shows_progress_and_the_same_end() -> None:
    shown = terminal(stream(PASSED, FAILED, SKIPPED), is_terminal=True)
    assert "3 of 3 cells" in shown
    assert FAILURE_BLOCK in shown
    assert shown.endswith(TERMINAL.partition("(the kernel takes no initial state)\n")[2])


def test_a_terminal_breaks_lines_between_words_and_no_command() -> None:
    reason = "of a kernel that does not take initial_states, return_final_states and D at the same time"
    verdicts = (replace(FAILED, failure=replace(LEAK, replay=f"{'long/' * 20}r.json")), replace(SKIPPED, reason=reason))
    shown = terminal(stream(*verdicts), is_terminal=True, width=80)
    lines = [line.rpartition("\r")[2].rpartition("\x1b[2K")[2] for line in shown.splitlines()]
    assert [line for line in lines if len(line) > 80] == [f"    packproof replay {'long/' * 20}r.json"]
    assert (
        "  1 skipped: carry (of a kernel that does not take initial_states,\n"
        "    return_final_states and D at the same time)\n"
    ) in shown
    assert f"  1 skipped: carry ({reason})\n" in terminal(stream(*verdicts), width=80)


def test_a_quiet_run_shows_failures_and_the_last_line() -> None:
    shown = terminal(stream(PASSED, FAILED, SKIPPED), quiet=True)
    assert shown == f"\n{FAILURE_BLOCK}\n\n\n{TERMINAL.splitlines()[-1]}\n"


def test_one_skipped_in_some_dtypes_keeps_its_row() -> None:
    judged = replace(SKIPPED, cell=cell("carry", "float32"), status="passed", examples=3, judged=3, reason="")
    shown = terminal(stream(SKIPPED, judged))
    assert "  carry  skipped  passed   gpu                   3      0.0\n" in shown
    assert "  carry: the kernel takes no initial state\n" in shown


@pytest.mark.parametrize(
    ("events", "line"),
    [
        (stream(PASSED), "every property held: 1 passed, 2 not run; 118 of 120 examples judged in 4.0 s"),
        (stream(PASSED, interrupted=True), "interrupted: 1 passed, 2 not run; 118 of 120 examples judged in 4.0 s"),
        (
            stream(error="OSError: disk full"),
            "packproof itself failed: OSError: disk full: 3 not run; 0 examples in 4.0 s",
        ),
        (stream(SKIPPED), "nothing was checked: 1 skipped, 2 not run; 0 examples in 4.0 s"),
        (
            stream(PASSED, EXPECTED, SKIPPED),
            "every property held, or failed as expected: 1 passed, 1 failed as expected, 1 skipped; "
            "121 of 123 examples judged in 4.0 s",
        ),
        (
            stream(PASSED, STALE, SKIPPED),
            "a property that was expected to fail holds, or does not apply: 1 stale, 1 passed, 1 skipped; "
            "127 of 129 examples judged in 4.0 s",
        ),
    ],
    ids=["passed", "interrupted", "error", "skipped", "expected", "stale"],
)
def test_last_line(events: list[Event], line: str) -> None:
    assert terminal(events).splitlines()[-1] == line


def test_a_cell_for_all_dtypes_has_no_column_of_its_own() -> None:
    compiled = Verdict(cell("compile", "all"), "compile", "passed", 8, 2.0, judged=8)
    shown = terminal(stream(compiled, PASSED)).splitlines()
    assert "             bf16     tier             judged  seconds" in shown
    assert "  compile    passed   compile               8      2.0" in shown


def test_layout_classes_that_were_not_judged_are_named() -> None:
    missed = "  25 of 27 layout classes judged; not judged: more than 16 sequences, more than 32 sequences"
    assert missed in terminal(stream(PASSED)).splitlines()


def test_layout_classes_outside_of_the_domain_are_not_counted() -> None:
    decode = replace(PASSED, classes=frozenset({"length 1", "no keys"}), possible_classes=frozenset({"length 1"}))
    assert "  2 of 2 layout classes judged" in terminal(stream(decode)).splitlines()


def test_kernels_with_brackets_are_not_markup() -> None:
    verdict = Verdict(cell("reference", "float32", target="[red]x[/red]:f"), "gpu", "passed", 1, 0.1)
    assert "[red]x[/red]:f" in terminal([RunStarted((verdict.cell,), "quick", 0), RunFinished((verdict,), 1.0)])


def documents(path: Path, events: list[Event]) -> list[dict[str, object]]:
    """The JSON file after each event."""
    report, seen = JsonReport(str(path)), []
    for event in events:
        report(event)
        seen.append(json.loads(path.read_text()))
    return seen


def test_json(tmp_path: Path) -> None:
    *events, end = stream(PASSED, FAILED, SKIPPED)
    assert isinstance(end, RunFinished)
    last = documents(tmp_path / "r.json", [*events, replace(end, timings={"kernel": 1.23456})])[-1]
    results, written_digest = last.pop("results"), last.pop("digest")
    assert written_digest == digest({**last, "results": results})
    assert last == {
        "version": 1,
        "packproof": "0.1.0",
        "target": "my_kernels:ssd_fwd",
        "op": "ssd",
        "device": "cuda",
        "profile": "standard",
        "seed": 7,
        "verdict": "failed",
        "terms_text": "",
        "terms": [],
        "contract": None,
        "finished": True,
        "error": "",
        "notes": [],
        "planned": 3,
        "seconds": 4.0,
        "promises": [],
        "walls": {},
        "timings": {"kernel": 1.235},
    }
    assert isinstance(results, list)
    assert [(r["property"], r["dtype"], r["status"]) for r in results] == [
        ("reference", "bfloat16", "passed"),
        ("packing", "bfloat16", "failed"),
        ("carry", "bfloat16", "skipped"),
    ]
    assert results[1] == {
        "op": "ssd",
        "target": "my_kernels:ssd_fwd",
        "device": "cuda",
        "tier": "gpu",
        "property": "packing",
        "dtype": "bfloat16",
        "status": "failed",
        "examples": 3,
        "judged": 3,
        "refused": 0,
        "seconds": 2.5,
        "classes": sorted(DRAWN),
        "lengths": [16, 1],
        "tensor": "gradient of B",
        "message": FAILURE_BLOCK,
        "example": 3,
        "tried": 41,
        "replay": ".packproof/ssd-packing-5e1c.json",
    }
    assert results[2]["reason"] == "the kernel takes no initial state"


def test_json_is_complete_after_every_cell(tmp_path: Path) -> None:
    seen = documents(tmp_path / "r.json", stream(PASSED, SKIPPED))
    assert [(d["verdict"], d["finished"], len(d["results"])) for d in seen] == [  # type: ignore[arg-type]
        *[("error", False, 0)] * 3,
        *[("error", False, 1)] * 3,
        ("error", False, 2),
        ("passed", True, 2),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize(
    ("events", "verdict"),
    [
        (stream(PASSED, interrupted=True), "error"),
        (stream(PASSED, error="OSError"), "error"),
        (stream(SKIPPED), "error"),
        (stream(FAILED, interrupted=True), "failed"),
        (stream(EXPECTED), "passed"),
        (stream(STALE), "failed"),
    ],
    ids=["interrupted", "own error", "nothing checked", "failed then interrupted", "expected", "stale"],
)
def test_json_verdict(tmp_path: Path, events: list[Event], verdict: str) -> None:
    assert documents(tmp_path / "r.json", events)[-1]["verdict"] == verdict


def test_json_has_the_order_of_the_plan_whichever_cell_ends_first(tmp_path: Path) -> None:
    seen = documents(tmp_path / "r.json", stream(SKIPPED, PASSED, FAILED))
    assert [[r["property"] for r in d["results"]] for d in seen if d["results"]][::3] == [  # type: ignore[attr-defined]
        ["carry"],
        ["reference", "carry"],
        ["reference", "packing", "carry"],
    ]


def test_json_of_several_kernels_has_no_single_target(tmp_path: Path) -> None:
    cells = (cell("packing", "float32"), cell("packing", "float32", op="rope", target="other:rope"))
    last = documents(tmp_path / "r.json", [RunStarted(cells, "quick", 0), RunFinished((), 0.0)])[-1]
    assert (last["op"], last["target"], last["device"]) == (None, None, "cuda")


def junit(path: Path, events: list[Event]) -> ElementTree.Element:
    report = JunitReport(str(path))
    for event in events:
        report(event)
    return ElementTree.parse(path).getroot()


def test_junit(tmp_path: Path) -> None:
    [suite] = junit(tmp_path / "r.xml", stream(PASSED, FAILED, SKIPPED))
    assert suite.attrib == {
        "name": "ssd my_kernels:ssd_fwd cuda",
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
        "time": "3.750",
    }
    assert [case.get("name") for case in suite] == ["reference-bf16", "packing-bf16", "carry-bf16"]
    failure = suite[1].find("failure")
    assert failure is not None
    assert failure.text == FAILURE_BLOCK
    lengths, first, second = list(LEAK.lengths), *LEAK.lines[:2]
    assert failure.get("message") == f"packing (gradient of B) at lengths {lengths}: {first}; {second}"


EXPECTED_BLOCK = FAILURE_BLOCK.replace("FAILED", "EXPECTED").replace(
    "    packproof replay", "    expected: issue 12\n    packproof replay"
)


def test_an_expected_failure_is_shown_in_full_and_counts_as_skipped(tmp_path: Path) -> None:
    shown = terminal(stream(PASSED, EXPECTED, SKIPPED))
    assert f"\n{EXPECTED_BLOCK}\n" in shown
    assert "expected ssd packing bf16" in shown
    assert "packing: expected: issue 12" in shown
    [suite] = junit(tmp_path / "r.xml", stream(PASSED, EXPECTED, SKIPPED))
    assert [suite.get(kind) for kind in ("failures", "errors", "skipped")] == ["0", "0", "2"]
    skipped = suite[1].find("skipped")
    assert skipped is not None
    assert skipped.attrib == {"type": "expected", "message": "expected: issue 12"}
    assert skipped.text == EXPECTED_BLOCK
    result = documents(tmp_path / "r.json", stream(PASSED, EXPECTED, SKIPPED))[-1]["results"][1]  # type: ignore[index]
    assert (result["status"], result["reason"], result["lengths"]) == ("expected", "expected: issue 12", [16, 1])


def test_a_stale_entry_is_a_failure(tmp_path: Path) -> None:
    block = "ssd · my_kernels:ssd_fwd · STALE  packing   bf16, gpu\n    it holds\n    remove entry 1"
    assert f"\n{block}\n" in terminal(stream(PASSED, STALE, SKIPPED))
    [suite] = junit(tmp_path / "r.xml", stream(PASSED, STALE, SKIPPED))
    failure = suite[1].find("failure")
    assert failure is not None
    assert failure.text == block


def test_junit_of_an_interrupted_run_lists_every_cell(tmp_path: Path) -> None:
    [suite] = junit(tmp_path / "r.xml", stream(PASSED, interrupted=True))
    assert (suite.get("tests"), suite.get("errors")) == ("3", "2")
    assert [e.get("message") for e in suite.iter("error")] == ["not run: the run was interrupted"] * 2


def test_junit_survives_what_xml_may_not_hold(tmp_path: Path) -> None:
    fault = Failure((1,), "", ("ValueError: \x1b[31m\x00 and \ud800",), 1, 2)
    verdict = Verdict(CELLS[1], "gpu", "failed", 1, 0.1, failure=fault)
    [suite] = junit(tmp_path / "r.xml", stream(verdict))
    [failure] = suite.iter("failure")
    assert "ValueError: \\x1b[31m\\x00 and \\ud800" in (failure.text or "")


@pytest.mark.parametrize("report", [JsonReport, JunitReport])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path, report: type) -> None:
    with pytest.raises(UsageError, match=r"nowhere of .* does not exist; create it first"):
        report(str(tmp_path / "nowhere" / "r"))
    with pytest.raises(UsageError, match="is a folder; expected the name of a file"):
        report(str(tmp_path))


def test_a_pass_that_leaves_something_unasked_says_so_in_its_line(tmp_path: Path) -> None:
    text = "not judged the gradients past 2^32 elements of a token's tensor: needs about 103 GB of GPU memory"
    part = replace(PASSED, judged=120, refused=0, unasked=(text,), reason=text)
    shown = terminal(stream(part))
    assert f"in part  ssd reference bf16                   gpu        120 examples, 1.2 s; {text}\n" in shown
    assert "  reference  in part  gpu                 120      1.2\n" in shown
    assert "held, but not everything could be asked of this machine: 1 passed in part, 2 not run;" in shown
    report = JsonReport(str(tmp_path / "report.json"))
    for event in stream(part):
        report(event)
    [result] = json.loads((tmp_path / "report.json").read_text())["results"]
    assert (result["status"], result["unasked"]) == ("passed", [text])
