"""Expected failures: what an entry makes of each verdict, which entries a run looks at, and a run from end to end."""

from dataclasses import replace
from pathlib import Path

import pytest

import packproof
from packproof.cli import main
from packproof.harness.check.expected import ExpectedFailures
from packproof.harness.report.events import Cell, Failure, Verdict

CELL = Cell("rope", "mine.py:rope", "packing", "float32", "cpu")
WRONG = Failure((1, 1), "y", ("fp32, seed 0", "sequence 1, token 0: wrong"), 2, 9, "r.json")
FAILED = Verdict(CELL, "eager", "failed", 2, 0.1, failure=WRONG)
PASSED = Verdict(CELL, "eager", "passed", 9, 0.1)


def expected(folder: Path, **more: str) -> ExpectedFailures:
    """A file of one entry, of CELL unless more says otherwise."""
    entry = {"target": "mine.py:rope", "property": "packing", "dtype": "fp32", "reason": "issue 12", **more}
    file = folder / "known.toml"
    file.write_text("\n".join(["[[expected_failure]]", *(f'{key} = "{value}"' for key, value in entry.items())]))
    return ExpectedFailures.from_file(str(file))


pytestmark = pytest.mark.usefixtures("working_folder")


def test_an_expected_failure_keeps_its_layout_and_does_not_fail_the_run(tmp_path: Path) -> None:
    verdict = expected(tmp_path).apply(FAILED)
    assert verdict == replace(FAILED, status="expected", reason="expected: issue 12")
    assert verdict.held
    assert not verdict.failed


def test_one_that_holds_is_stale_and_fails_the_run(tmp_path: Path) -> None:
    verdict = expected(tmp_path).apply(PASSED)
    assert verdict.status == "stale"
    assert verdict.failed
    assert verdict.failure is not None
    assert verdict.failure.lines == (
        "it holds, and was expected to fail: issue 12",
        "remove entry 1 of known.toml",
    )


def test_one_that_does_not_apply_is_stale(tmp_path: Path) -> None:
    skipped = replace(PASSED, status="skipped", reason="only a GPU has streams")
    verdict = expected(tmp_path).apply(skipped)
    assert verdict.status == "stale"
    assert verdict.failure is not None
    assert verdict.failure.lines[0].startswith("it does not apply here, and was expected to fail")


def test_an_inconclusive_cell_is_no_expected_failure(tmp_path: Path) -> None:
    verdict = expected(tmp_path).apply(replace(PASSED, status="inconclusive", reason="out of time"))
    assert verdict.status == "inconclusive"
    assert verdict.reason == "out of time; the failure of entry 1 of known.toml was not seen"


def test_a_fault_of_packproof_stays_one(tmp_path: Path) -> None:
    error = replace(PASSED, status="error", reason="packproof itself failed")
    assert expected(tmp_path).apply(error) is error


@pytest.mark.parametrize(
    ("entry", "failure", "said"),
    [
        ({}, replace(WRONG, fault="crashed"), "expects a wrong result, and this is fault 'crashed'"),
        ({"fault": "raised"}, replace(WRONG, fault="hung"), "expects fault 'raised', and this is fault 'hung'"),
        ({"fault": "raised"}, WRONG, "expects fault 'raised', and this is a wrong result"),
        ({"tensor": "gradient of x"}, WRONG, "expects a failure of gradient of x, and this is one of y"),
    ],
)
def test_another_failure_than_the_expected_one_fails(
    entry: dict[str, str], failure: Failure, said: str, tmp_path: Path
) -> None:
    verdict = expected(tmp_path, **entry).apply(replace(FAILED, failure=failure))
    assert verdict.failed
    assert verdict.failure is not None
    assert verdict.failure.lines == (*failure.lines, f"entry 1 of known.toml {said}")


@pytest.mark.parametrize(
    "entry",
    [
        {"fault": "crashed"},
        {"fault": "crashed", "device": "cpu"},
        {"target": "./mine.py:rope"},
        {"target": "mine:rope"},
    ],
)
def test_the_same_failure_is_expected_however_it_is_named(entry: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    failure = replace(WRONG, fault=entry.get("fault", ""))
    assert expected(tmp_path, **entry).apply(replace(FAILED, failure=failure)).status == "expected"


@pytest.mark.parametrize(
    "entry",
    [
        {"target": "other.py:rope"},
        {"target": "other:rope"},
        {"property": "carry"},
        {"dtype": "bf16"},
        {"device": "cuda"},
    ],
    ids=["target", "module", "property", "dtype", "device"],
)
def test_an_entry_is_of_one_cell(entry: dict[str, str], tmp_path: Path) -> None:
    found = expected(tmp_path, **entry)
    assert found.apply(FAILED) is FAILED
    [note] = found.notes([CELL])
    assert note.startswith("0 expected failures of known.toml, not in this run: ")


def test_what_does_not_count_is_not_judged(tmp_path: Path) -> None:
    """A property that is not promised fails no run, and no entry is about it."""
    beyond = replace(FAILED, cell=replace(CELL, property="isolation", unpromised="NaN", counts=False))
    assert expected(tmp_path, property="isolation (NaN)").apply(beyond) is beyond
    strict = replace(beyond, cell=replace(beyond.cell, counts=True))
    assert expected(tmp_path, property="isolation (NaN)").apply(strict).status == "expected"


CONV = """
from packproof import refs

def conv(x, weight, *, cu_seqlens):
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens[[0, -1]])
"""
ENTRY = """[[expected_failure]]
target = "mine.py:conv"
property = "{law}"
dtype = "fp32"
reason = "issue 12"
"""


def checked(capsys: pytest.CaptureFixture[str], *laws: str) -> tuple[int, str]:
    """The check of a convolution that never starts again, with entries for these laws: exit code and output."""
    Path("mine.py").write_text(CONV)
    Path("known.toml").write_text("".join(ENTRY.format(law=law) for law in laws))
    line = "check mine.py:conv --op causal_conv1d --dtype fp32 --property packing,strides --profile quick --device cpu"
    code = main.run([*line.split(), "--expected-failures", "known.toml"])
    return code, capsys.readouterr().out


def test_a_run_with_a_stale_entry_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """The failure that is expected is shown in full."""
    code, out = checked(capsys, "packing", "strides")
    assert code == 1
    assert "causal_conv1d · mine.py:conv · EXPECTED  packing (y)   fp32, eager\n    lengths [1, 1] " in out
    assert "    expected: issue 12\n" in out
    assert "FAILED" not in out
    assert "failing" not in out
    assert "STALE  strides   fp32, eager\n    it holds, and was expected to fail: issue 12\n" in out
    own_terms = "on the kernel's own terms (no bias, initial_states, activation, return_final_states)"
    outcome = f"a property that was expected to fail holds, or does not apply, {own_terms}"
    assert f"{outcome}: 1 stale, 1 failed as expected; " in out


def test_from_python(tmp_path: Path) -> None:
    Path("mine.py").write_text(CONV)
    Path("known.toml").write_text(ENTRY.format(law="packing"))
    verdicts = packproof.check(
        "mine.py:conv",
        op="causal_conv1d",
        device="cpu",
        dtypes=["fp32"],
        properties=["packing"],
        profile="quick",
        expected_failures="known.toml",
    )
    assert verdicts[0].status == "expected"
