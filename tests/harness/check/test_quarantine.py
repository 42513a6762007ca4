"""Quarantine: calls and properties that are known to end the machine are not launched, and the report says so."""

import json
from pathlib import Path

import pytest

from packproof.base.errors import UsageError
from packproof.cli import main
from packproof.harness.check.expected import ExpectedFailures
from packproof.harness.report.events import Cell

pytestmark = pytest.mark.usefixtures("working_folder")

ENDS = """
import os
from packproof import refs

def conv(x, weight, *, cu_seqlens):
    if (cu_seqlens.diff() == 0).any():
        os.abort()  # stands for a hang, or for a fault of the GPU
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)
"""
EMPTY = """[[quarantine]]
target = "mine.py:conv"
domain = "length > 0"
reason = "an empty sequence hangs"
issue = "https://example.org/issues/12"
"""
PROPERTY = """[[quarantine]]
target = "mine:conv"
property = "strides"
reason = "a transposed input hangs"
issue = "#13"
"""
KNOWN = """[[expected_failure]]
target = "mine.py:conv"
property = "packing"
dtype = "fp32"
reason = "issue 12"
"""


def checked(capsys: pytest.CaptureFixture[str], source: str, known: str, *more: str) -> tuple[int, str]:
    """Exit code and output of a check with this file of expected failures."""
    Path("mine.py").write_text(source)
    Path("known.toml").write_text(known)
    line = "check mine.py:conv --op causal_conv1d --dtype fp32 --profile quick --device cpu"
    code = main.run([*line.split(), "--expected-failures", "known.toml", *more])
    return code, capsys.readouterr().out


LAWS = ("--property", "packing,strides")


def test_calls_in_quarantine_are_not_launched(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = checked(capsys, ENDS, "", "--property", "packing")
    assert code == 1
    assert "SIGABRT" in out
    code, out = checked(capsys, ENDS, EMPTY, "--property", "packing")
    assert code == 0
    assert (
        "mine.py:conv: calls outside of length > 0 are quarantined, not launched: an empty sequence hangs "
        "(https://example.org/issues/12)"
    ) in out
    assert "length > 0 by quarantine (https://example.org/issues/12)" in out.splitlines()[-1]


def test_a_property_in_quarantine_is_skipped_with_its_issue(capsys: pytest.CaptureFixture[str]) -> None:
    source = ENDS.replace("(cu_seqlens.diff() == 0).any()", "not x.is_contiguous()")
    assert checked(capsys, source, "", *LAWS)[0] == 1
    code, out = checked(capsys, source, PROPERTY, *LAWS, "--json", "out.json")
    assert code == 0
    assert "strides (quarantined, not launched: a transposed input hangs (#13))" in out
    assert "no strides by quarantine (#13)" in out.splitlines()[-1]
    results = {result["property"]: result for result in json.loads(Path("out.json").read_text())["results"]}
    assert results["strides"]["status"] == "skipped"
    assert results["packing"]["status"] == "passed"


def test_a_run_of_nothing_else_judges_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = checked(capsys, ENDS, PROPERTY, "--property", "strides")
    assert code == 2
    assert "quarantined, not launched" in out


def test_an_expected_failure_may_stand_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    leaky = ENDS.replace("cu_seqlens=cu_seqlens)", "cu_seqlens=cu_seqlens[[0, -1]])")
    code, out = checked(capsys, leaky, EMPTY + KNOWN, "--property", "packing")
    assert code == 0
    assert "EXPECTED  packing (y)" in out
    assert "1 expected failure of known.toml" in out


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("issue = ", "issues = "), "'issues' is not a key; did you mean issue?"),
        (('issue = "https://example.org/issues/12"\n', ""), "it has no issue; expected [[quarantine]] with target"),
        (("https://example.org/issues/12", "soon"), "issue is 'soon'; expected a number, owner/repository#12 or an"),
        (("domain = ", "property = "), "no property is called 'length > 0'"),
        (('domain = "length > 0"\n', ""), "expected a domain, or a property with or without a dtype"),
        (("length > 0", "length >"), "domain: "),
        (("mine.py:conv", "mine.py:rope"), "mine.py defines no rope"),
        (("reason = ", 'device = "gpu"\nreason = '), "device"),
        (("reason = ", 'dtype = "fp32"\nreason = '), "expected a domain, or a property with or without a dtype"),
        (("[[quarantine]]", "[quarantine]"), "expected only [[expected_failure]]"),
    ],
)
def test_an_entry_is_checked(change: tuple[str, str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(ENDS)
    Path("known.toml").write_text(EMPTY.replace(*change))
    line = "check mine.py:conv --op causal_conv1d --device cpu --expected-failures known.toml"
    assert main.run(line.split()) == 2
    assert expected in capsys.readouterr().err


def test_an_entry_of_another_device_or_kernel_is_not_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.py").write_text(ENDS)
    for change in (("reason = ", 'device = "cuda"\nreason = '), ("mine.py:conv", "other.py:conv")):
        code, out = checked(capsys, ENDS, EMPTY.replace(*change), "--property", "packing")
        assert code == 1
        assert "by quarantine" not in out


def test_a_property_may_be_held_back_in_one_dtype() -> None:
    Path("known.toml").write_text(PROPERTY + 'dtype = "bf16"\n')
    [entry] = ExpectedFailures.from_file("known.toml").quarantined
    Path("mine.py").write_text(ENDS)
    cell = Cell("causal_conv1d", "mine.py:conv", "strides", "bfloat16", "cuda")
    assert entry.holds_back(cell)
    assert not entry.holds_back(Cell("causal_conv1d", "mine.py:conv", "strides", "float32", "cuda"))
    assert not entry.holds_back(Cell("causal_conv1d", "mine.py:conv", "packing", "bfloat16", "cuda"))


def test_the_number_of_an_entry_is_named() -> None:
    Path("known.toml").write_text(EMPTY + EMPTY.replace("target", "targets"))
    with pytest.raises(UsageError, match=r"known.toml, quarantine 2: 'targets' is not a key; did you mean target\?"):
        ExpectedFailures.from_file("known.toml")
