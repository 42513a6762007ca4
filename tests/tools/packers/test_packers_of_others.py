"""The packers and collators of transformers, trl and torchtune: what holds, what does not, and scripts that show it."""

import subprocess
import sys
from pathlib import Path

import pytest

from packproof.cli.main import run

ROOT = Path(__file__).parents[3]
TARGETS = ROOT / "examples/packing/packers_of_others.py"

# The package, the laws that are asked for, and what the report says, "" where all of them hold.
CASES = {
    "flattening": ("transformers", ("complete", "boundaries", "crossing"), ""),
    "flattening_for_flash": ("transformers", ("boundaries", "mask"), ""),
    "trl_best_fit": ("trl", ("complete",), "tokens 10 to 11 of document 0 are in no pack"),
    "trl_best_fit_split": ("trl", ("complete",), ""),
    "torchtune_rows": ("torchtune", ("crossing",), "labels is token 0 of document 1 in row 1; expected -100"),
    "torchtune_split_rows": ("torchtune", ("boundaries",), "pack 1: position_ids is 0 in row 5; expected 10"),
}
SCRIPTS = {
    "flattening_label_of_nothing": ("transformers", "3 tokens, "),
    "torchtune_labels": ("torchtune", "of document 0, and is to predict 1, of document 1"),
    "torchtune_positions": ("torchtune", "positions [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]"),
    "trl_long_document": ("trl", "bfd: 12 of 13 tokens"),
}  # fmt: skip


@pytest.mark.proof
@pytest.mark.parametrize("name", CASES)
def test_packers_of_others(name: str, working_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    package, laws, text = CASES[name]
    pytest.importorskip(package)
    properties = [word for law in laws for word in ("--property", law)]
    code = run(["packs", "check", f"{TARGETS}:{name}", "--profile", "quick", "--capacity", "10", *properties])
    out = capfd.readouterr().out
    assert code == (1 if text else 0), out
    assert text in out


@pytest.mark.proof
@pytest.mark.parametrize("name", SCRIPTS)
def test_each_script_shows_it_without_packproof(name: str) -> None:
    package, text = SCRIPTS[name]
    pytest.importorskip(package)
    script = ROOT / f"docs/packers/{name}.py"
    assert "packproof" not in script.read_text()
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert text in done.stdout


def test_every_script_is_run() -> None:
    assert {path.stem for path in ROOT.glob("docs/packers/*.py")} == set(SCRIPTS)
