"""Replay files of modules: written by a failure, shown, run again, fixed or still failing; and files that are none."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import packproof
from packproof.cli.main import run
from packproof.harness.report.events import RunFinished
from packproof.harness.report.failed import CheckFailed
from packproof.harness.report.replay_files.module_record import ModuleRecord
from packproof.models.check import check_module, run_module_check
from packproof.models.replay import replay
from packproof.models.request import module_request
from packproof.models.subjects.conventions import Convention
from packproof.models.subjects.modes import Mode
from tests.tools.models.models import Conv, dropped_in

LEAKY = """
import torch
import packproof

class Mixer(torch.nn.Module):
    kept = 0

    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(4, 4)

    def forward(self, x, ends=None, cu_seqlens=None):
        edges = cu_seqlens.tolist() if ends is None else [0, *ends]
        lengths = [b - a for a, b in zip(edges, edges[1:])] + [x.shape[1] - edges[-1]]
        y = torch.cat([part.cumsum(0) for part in x[0].split(lengths)])
        return self.out(y + self.kept * x[0].sum(0))[None]

class Leaky(Mixer):
    kept = 1

class ReadsPadding(Mixer):
    def forward(self, x, cu_seqlens):
        return super().forward(x, None, cu_seqlens) + x[0, cu_seqlens[-1] :].sum()

ENDS = packproof.Convention("ends", "the end of each document", lambda pack: {"ends": pack.offsets[1:].tolist()})
"""
WIDE = ["--inputs", "4", "--profile", "quick"]


@pytest.fixture
def folder(working_folder: Path) -> Path:
    (working_folder / "layers.py").write_text(LEAKY)
    return working_folder


def written(folder: Path, law: str) -> Path:
    [file] = folder.glob(f".packproof/*-{law}-*.json")
    return file


def test_a_failure_leaves_a_file_that_fails_and_is_fixed_with_the_module(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["model", "layers.py:Leaky", *WIDE, "--convention", "cu_seqlens", "--dtype", "fp64"]) == 1
    file = written(folder, "isolation")
    assert f"packproof replay {file.relative_to(folder)}" in capfd.readouterr().out
    assert run(["replay", str(file)]) == 1
    out = capfd.readouterr().out
    assert "cu_seqlens · layers.py:Leaky · isolation   fp64, cpu\n    lengths [1, 1]\n    still failing\n" in out
    (folder / "layers.py").write_text(LEAKY.replace("kept = 1", "kept = 0"))
    assert run(["replay", str(file)]) == 0
    assert "fixed: the property holds here" in capfd.readouterr().out


def test_a_failure_through_padding_is_replayed_with_it(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = ["model", "layers.py:ReadsPadding", *WIDE, "--convention", "cu_seqlens"]
    assert run(line) == 1
    file = written(folder, "padding")
    assert json.loads(file.read_text())["gaps"] == [0, 1]
    capfd.readouterr()
    assert run(["replay", str(file)]) == 1
    assert "lengths [1], padding [0, 1]\n    still failing" in capfd.readouterr().out


def test_what_it_holds_is_shown(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(["model", "layers.py:Leaky", *WIDE, "--convention", "layers.py:ENDS", "--mode", "train", "--seed", "3"])
    capfd.readouterr()
    assert run(["replay", str(written(folder, "isolation")), "--show"]) == 0
    out = capfd.readouterr().out
    for words in (
        "module      layers.py:Leaky",
        "layers.py:ENDS",
        "mode        train",
        "seed        3",
        "[1, 1], 2 tokens",
    ):
        assert words in out, out


def test_a_convention_and_a_mode_come_back(folder: Path) -> None:
    run(["model", "layers.py:Leaky", *WIDE, "--convention", "layers.py:ENDS", "--mode", "checkpointing"])
    outcome = packproof.replay(written(folder, "isolation"))
    assert outcome.status == "failing"
    assert outcome.verdict.cell.op == "ends (checkpointing)"


def ends(pack: Any) -> dict[str, Any]:
    return {"cu_seqlens": pack.offsets.int()}


ENDS = Convention("mine", "offsets", ends)


def leaky() -> torch.nn.Module:
    return dropped_in(0, [Conv])


def test_a_check_in_python_leaves_one_too(folder: Path) -> None:
    with pytest.raises(CheckFailed, match=r"packproof replay \.packproof/ENDS-isolation-"):
        check_module(leaky, convention=ENDS, profile="quick")
    data = json.loads(written(folder, "isolation").read_text())
    assert (data["target"], data["convention"]) == (f"{__name__}:leaky", f"{__name__}:ENDS")
    assert replay(written(folder, "isolation")).status == "failing"


def test_an_instance_needs_a_target(folder: Path) -> None:
    with pytest.raises(CheckFailed):
        check_module(leaky(), convention="cu_seqlens", profile="quick")
    file = written(folder, "isolation")
    outcome = replay(file)
    assert outcome.status == "not applicable"
    assert "an instance was checked, which no file names; --target, or target=, names a function" in outcome.text
    assert replay(file, target=f"{__name__}:leaky").status == "failing"


def record(**changes: Any) -> dict[str, Any]:
    good = ModuleRecord(
        "layers.py:Leaky", "cu_seqlens", "isolation", (1, 1), (), "float32", "cpu", 0, 4, None, True, asdict(Mode())
    )
    return {"version": 1, "kind": "module", **asdict(good), **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": 3}, "target is 3, expected text"),
        ({"property": "strides"}, "no property is called 'strides'"),
        ({"dtype": "fp32"}, "no dtype is called 'fp32'"),
        ({"device": "gpu"}, "no device is called 'gpu'"),
        ({"lengths": []}, "lengths is [], expected a list of numbers from 1 on"),
        ({"lengths": [1, 0]}, "lengths is [1, 0]"),
        ({"gaps": [1]}, "gaps has 1 numbers, expected one more than lengths"),
        ({"lengths": [1 << 30]}, "more than 1,048,576 tokens"),
        ({"mode": {"train": "yes"}}, "mode is {'train': 'yes'}, expected attention, train"),
        ({"inputs": []}, "inputs is [], expected a width"),
        ({"version": 2}, "a replay file of version 2, and this packproof reads 1; use packproof"),
    ],
    ids=str,
)
def test_a_damaged_file_is_one_line(
    changes: dict[str, Any], words: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.json").write_text(json.dumps(record(**changes)))
    assert run(["replay", "bad.json"]) == 2
    err = capfd.readouterr().err
    assert words in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": "absent.py:Leaky"}, "there is no file absent.py"),
        ({"device": "cuda"}, "not available here"),
        ({"convention": "ends"}, "no convention is called 'ends'"),
        ({"inputs": ""}, "inputs or output was a function that no other process can import"),
        ({"mode": asdict(Mode(attention="eager"))}, "the module lets no attention be chosen"),
    ],
    ids=str,
)
def test_what_cannot_be_run_here_is_not_applicable(changes: dict[str, Any], words: str, folder: Path) -> None:
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    (folder / "file.json").write_text(json.dumps(record(**changes)))
    outcome = replay(folder / "file.json")
    assert (outcome.status, outcome.verdict.status) == ("not applicable", "skipped")
    assert words in outcome.text


def test_the_board_leaves_no_files(folder: Path) -> None:
    request = module_request(leaky(), convention="cu_seqlens", profile="quick", records=False)
    *_, end = run_module_check(request)
    assert isinstance(end, RunFinished)
    assert not list(folder.glob(".packproof/*"))
