"""`packproof museum` as users type it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packproof.cli import ending, main
from packproof.museum import controls, entries
from packproof.proof.museum.detect import detect


def test_the_list_has_a_line_for_each_entry_of_an_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["museum", "--op", "rope"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["id", "op", "class"]
    assert len(lines) == sum(entry.op == "rope" for entry in entries().values())


def test_an_entry_shows_where_its_bug_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["museum", "show", "D4"]) == 0
    shown = capsys.readouterr().out
    assert "sglang/issues/31833" in shown
    assert 'if bug == "D4" and c0:' in shown


def test_a_run_exits_with_0_where_everything_is_detected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.json"
    assert main.run(["museum", "run", "C4", "R1", "--device", "cpu", "--json", str(file)]) == 0
    assert "2 of 2 detected" in capsys.readouterr().out
    results = {result["id"]: result for result in json.loads(file.read_text())["results"]}
    assert results["C4"]["status"] == results["R1"]["status"] == "detected"
    assert results["R1"]["property"] == "packing"
    assert results["R1"]["lines"]


@pytest.fixture
def museum(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`museum(entries=..., controls=...)`: the commands find these kernels there."""

    def replace_kernels(**kernels: dict[str, Any]) -> None:
        for name, mapping in kernels.items():
            monkeypatch.setattr(f"packproof.museum.{name}", lambda mapping=mapping: mapping)

    return replace_kernels


def test_a_correct_kernel_is_missed_and_the_run_fails(
    museum: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    correct = dataclasses.replace(entries()["R1"], kernel="packproof.museum.rotary:correct")
    assert detect(correct, profile="quick", device="cpu").missed
    museum(entries={"R1": correct})
    assert main.run(["museum", "run", "R1", "--profile", "quick", "--device", "cpu"]) == 1
    assert "NOT DETECTED by packing, reference in 21 examples" in capsys.readouterr().out


@pytest.mark.proof
def test_a_control_that_fails_is_a_false_alarm(
    museum: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    incorrect = dataclasses.replace(controls()["rotary.correct"], id="rotary.incorrect", kernel=entries()["R1"].kernel)
    museum(controls=controls() | {"rotary.incorrect": incorrect})
    file = tmp_path / "alarms.json"
    assert main.run(["museum", "alarms", "rotary.incorrect", "--seeds", "8", "--json", str(file)]) == ending.FAILED
    assert "reference, lengths" in capsys.readouterr().out
    [result] = json.loads(file.read_text())["results"]
    assert result["false"]
    # seven properties judge each seed, four the three packs with tokens, two the one of them in fp32, and one the two
    # seeds in fp32; a pack needs two sequences to be permuted, and a sequence two tokens to be causal
    assert result["judged"] == 7 * 8 + 4 * 3 + 2 + 2 + 6 + 3


def test_a_correct_kernel_raises_no_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["museum", "alarms", "rotary.correct", "--seeds", "4"]) == 0
    assert "0 false alarms in 33 judgements of 1 correct kernel" in capsys.readouterr().out


@pytest.mark.proof
def test_recipes_detect_what_they_compare(museum: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """C6 is incorrect in a gradient alone, R1 in the output; no recipe rejects the correct rotation."""
    correct = {"rotary.correct": controls()["rotary.correct"]}
    museum(entries={name: entries()[name] for name in ("C6", "R1")}, controls=correct)
    assert main.run(["museum", "compare"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    rows = {line[:25].strip(): line[25:].split() for line in lines}
    assert rows["packed-branch"] == ["1", "1", "0", "1", "1", "1"]
    assert rows["boundary-lost"] == ["1"] * 6
    assert rows["correct kernels rejected"] == ["1", "0", "0", "0", "0"]


def test_an_unknown_entry_is_answered_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["museum", "show", "C99"]) == 2
    assert "no entry is called 'C99'; did you mean C9?" in capsys.readouterr().err
