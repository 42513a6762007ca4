"""The report of `packproof proof`: numbers from the files of four commands."""

import json
from pathlib import Path
from typing import Any

import pytest

from packproof.cli import ending, main
from packproof.proof.proof_report import PARTS

pytestmark = pytest.mark.proof  # the cases of every op are drawn

RUN = {"property": "", "examples": 3, "seconds": 1.5, "tier": "eager"}
MUSEUM = [
    RUN | {"id": "A", "class": "strides", "status": "detected", "property": "strides", "examples": 1, "seconds": 0.5},
    RUN | {"id": "B", "class": "strides", "status": "missed", "examples": 60, "seconds": 9.0},
    RUN | {"id": "C", "class": "wrong-grid", "status": "detected", "property": "packing", "tier": "interpret"},
    RUN | {"id": "D", "class": "wrong-grid", "status": "skipped"},
]
RECIPES = [
    {"id": "A", "class": "strides", "caught_by": ["packproof", "assert_close"]},
    {"id": "C", "class": "wrong-grid", "caught_by": ["packproof"]},
    {"id": "correct", "class": None, "caught_by": ["assert_close"]},
]
ALARMS = [{"id": "correct", "seeds": 8, "judged": 80, "false": ["packing, rope"]}]
ERRORS = [
    {
        "op": "rope",
        "dtype": "bfloat16",
        "compute": "fp32",
        "cumsum": False,
        "output": [0.0039, "y"],
        "gradient": [0.0041, "x"],
        "shared": None,
        "vacuous": ["gradient of cos"],
    }
]
MUTANT = {"file": "kernels/a.py", "was": "i < n | m", "now": "i <= n", "seconds": 1.0, "reason": "", "by": ""}
MUTANTS = [
    MUTANT | {"id": "a:f:comparison:0", "status": "killed", "by": "packing"},
    MUTANT | {"id": "a:f:comparison:1", "status": "equivalent", "reason": "both are zero"},
    MUTANT | {"id": "a:f:comparison:2", "status": "survived"},
    MUTANT | {"id": "a:f:comparison:3", "status": "beyond", "reason": "only a long pack shows it"},
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for part, results in zip(PARTS, (MUSEUM, RECIPES, ALARMS, ERRORS, MUTANTS), strict=True):
        (folder / f"{part}.json").write_text(json.dumps({"version": 1, "results": results}))
    return folder


@pytest.fixture(scope="module")
def page(runs: Path) -> Path:
    """The report that the command writes, with its numbers in a folder beside it."""
    (runs / "numbers").mkdir()
    page, numbers = runs / "proof.md", runs / "numbers/proof.json"
    assert main.run(["proof", str(runs), str(page), "--json", str(numbers)]) == 0
    return page


@pytest.fixture(scope="module")
def found(page: Path) -> dict[str, Any]:
    return dict(json.loads((page.parent / "numbers/proof.json").read_text()))


def test_numbers_are_counted(found: dict[str, Any]) -> None:
    assert (found["museum"]["detected"], found["museum"]["run"], found["museum"]["need a GPU"]) == (2, 3, 1)
    assert found["museum"]["seconds"] == {"median": 1.0, "worst": 1.5}
    assert found["museum"]["by class"]["strides"] == {"run": 2, "detected": 1}
    assert found["museum"]["by tier"]["eager"] == {"run": 2, "detected": 1}
    assert found["museum"]["missed"] == ["B"]
    assert found["recipes"]["caught"] == {"packproof": 2, "assert_close": 1}
    assert found["recipes"]["rejected"]["assert_close"] == 1
    assert found["alarms"] == {"correct kernels": 1, "seeds": 8, "judgements": 80, "false": 1, "rejected": 1}
    assert found["mutants"]["killed of all"] == 0.25
    assert found["mutants"]["killed of those that differ"] == 0.3333
    assert found["mutants"]["reasons"] == {
        "equivalent": {"both are zero": 1},
        "beyond": {"only a long pack shows it": 1},
    }
    assert [m["id"] for m in found["mutants"]["survivors"]] == ["a:f:comparison:2"]


def test_every_boundary_class_is_drawn_for_every_op(found: dict[str, Any]) -> None:
    for op, covered in found["coverage"].items():
        assert covered["missed"] == [], op


def test_the_report_is_a_page_that_links_its_numbers(page: Path) -> None:
    text = page.read_text()
    assert "2 of 3 are detected at the standard profile" in text
    assert "| a:f:comparison:2 | `i < n \\| m` | `i <= n` |" in text
    assert "[proof.json](numbers/proof.json)" in text
    assert "| rope | bf16 | fp32 |  | 3.9e-03 (y) | 4.1e-03 (x) |  | gradient of cos |" in text


def test_a_run_that_is_not_there_is_answered_in_one_line(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("museum", "recipes", "errors", "mutants"):
        (tmp_path / f"{part}.json").write_bytes((runs / f"{part}.json").read_bytes())
    line = ["proof", str(tmp_path), str(tmp_path / "proof.md"), "--json", str(tmp_path / "proof.json")]
    assert main.run(line) == ending.WRONG_CALL
    assert "alarms.json: No such file or directory; `make proof` writes it" in capsys.readouterr().err


def test_the_readme_quotes_the_report() -> None:
    root = Path(__file__).parents[3]
    found = json.loads((root / "data/proof.json").read_text())
    museum, mutants, alarms, recipes = found["museum"], found["mutants"], found["alarms"], found["recipes"]["caught"]
    readme = " ".join((root / "README.md").read_text().split())
    for sentence in (
        f"{museum['detected']} of {museum['run']} are detected",
        f"median {museum['seconds']['median']:.1f} s, worst {museum['seconds']['worst']:.1f} s",
        f"catches {recipes['assert_close, forward']} at fixed layouts, with gradients {recipes['assert_close']}",
        f"{mutants['killed']:,} of {mutants['all']:,} mutants",
        f"{mutants['killed of those that differ']:.1%} of those that compute something else",
        f"{alarms['false']} false alarms in {alarms['judgements']:,} judgements",
    ):
        assert sentence in readme
    assert museum["missed"] == mutants["survivors"] == []
    # 95 % of all, where 200 of 5,250 computed the same; how many do grows with the kernels, and nothing can kill them
    assert mutants["killed of those that differ"] >= 0.95 / (1 - 200 / 5250)
