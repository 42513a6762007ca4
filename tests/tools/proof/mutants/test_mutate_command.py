"""`packproof mutate` as users type it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from packproof.cli import main
from packproof.proof.mutants.equivalents import find_explanations
from packproof.proof.mutants.mutant import all_mutants
from packproof.proof.mutants.run import _digest


@pytest.mark.proof
def test_the_list_has_every_mutant_of_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["mutate", "--kernel", "rope:_load_pairs", "--list"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    count = sum((m.module, m.function) == ("rope", "_load_pairs") for m in all_mutants())
    assert last == f"{count} mutants"
    assert len(lines) == 4 * count
    assert lines[0] == "rope:_load_pairs:mask:0"
    assert lines[1].startswith("kernels/rope.py:")
    assert lines[2].startswith("- first_members = tl.load(token + channel, mask=mask")
    assert lines[3].startswith("+ first_members = tl.load(token + channel, eviction_policy=")


def test_those_beyond_the_interpreter_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["mutate", "--beyond", "--kernel", "selective_scan_fwd", "--list"]) == 0
    listed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("selective_scan_fwd:")]
    here = find_explanations(m for m in all_mutants() if m.module == "selective_scan_fwd")
    assert set(listed) == {name for name, e in here.items() if e.out_of_reach}
    assert listed


def test_an_unknown_kernel_is_answered_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["mutate", "--kernel", "worklist"]) == 2
    assert "no kernel is called 'worklist'; did you mean worklists?" in capsys.readouterr().err


@pytest.mark.proof
def test_a_run_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, file = tmp_path / "kept.jsonl", tmp_path / "run.json"
    call = ["mutate", "--op", "rope", "--kernel", "rope:_store_pairs", "--sample", "2", "--seed", "1"]
    assert main.run([*call, "--resume", str(kept), "--json", str(file)]) == 0
    assert "2 of 2 killed (100.0%)" in capsys.readouterr().out
    results = json.loads(file.read_text())["results"]
    assert {r["status"] for r in results} == {"killed"}
    outcomes = kept.read_text()
    assert main.run([*call, "--resume", str(kept)]) == 0
    assert "2 of 2 killed" in capsys.readouterr().out
    assert kept.read_text() == outcomes


def test_outcomes_for_other_kernels_properties_or_references_are_not_reused(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("kernels", "properties", "refs")]
    seen = {_digest("cpu", folders[0]), _digest("cuda", folders[0])}
    for folder in folders:
        folder.mkdir()
        (folder / "of_today.py").write_text(folder.name)
        seen.add(_digest("cpu", folders[0]))
    assert len(seen) == 5


def test_a_gpu_that_is_not_there_is_answered_in_one_line(
    cuda_available: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    cuda_available(False)
    assert main.run(["mutate", "--device", "cuda", "--sample", "1"]) == 2
    assert "sees no CUDA device here" in capsys.readouterr().err
