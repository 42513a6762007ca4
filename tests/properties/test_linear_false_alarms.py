"""Correct forms of linear attention and the delta rule raise no false alarm, nor over 20,000 tokens.

`python -m tests.properties.linear_alarms` is the long run, over 200 seeds.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from packproof.properties.bounds.oracle import expected, with_promises
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.sample import Sample
from packproof.properties.ops import OPS
from packproof.properties.promises import Promises
from tests.properties import linear_alarms
from tests.properties.linear_alarms import DTYPES, alarms, broken, forms
from tests.properties.linear_bugs import DELTA, LINEAR

LONG = 20_000
CHUNKED = "chunks of 64"


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [*LINEAR, *DELTA])
def test_correct_forms_raise_no_false_alarm(op: str, dtype: str, seed: int) -> None:
    assert len(forms(op, dtype)) >= 5
    assert list(alarms(op, dtype, seed)) == []


def long(op: str, dtype: str) -> Sample:
    return draw(OPS[op], Case((LONG,), dtype, tuple(OPS[op].sizes[0].items()), seed=1))


@pytest.mark.proof
@pytest.mark.parametrize(("op", "dtype"), [("simple_gla", "bfloat16"), ("gated_delta_rule", "float32")])
def test_a_sequence_of_20000_tokens(op: str, dtype: str) -> None:
    """A correct form is within the budget, and late tokens that are wrong by a thousandth, or a sixtieth, are not."""
    sample = long(op, dtype)
    kernel, promises = forms(op, dtype)[CHUNKED]
    want = expected(sample, promises, gradients=True)
    assert broken(kernel, sample, want) == {}
    v = sample.inputs["v"].clone()
    v[-8:-4] *= 1.001 if dtype == "float32" else 1 + 2**-6
    wrong = replace(sample, inputs={**sample.inputs, "v": v})
    assert broken(kernel, wrong, want)["y"] > 1


def test_budgets_of_other_promises_are_those_of_a_run_with_them() -> None:
    sample = draw(OPS["gated_delta_rule"], Case((3, 5), "bfloat16", tuple(OPS["gated_delta_rule"].sizes[0].items())))
    want, own = (expected(sample, promises, gradients=True) for promises in (Promises(), Promises(compute="fp32")))
    found = with_promises(want, sample, Promises(compute="fp32"))
    assert found.vacuous == own.vacuous
    for key, allowed in own.budgets.items():
        assert found.budgets[key].total.equal(allowed.total)
        assert found.values[key].equal(own.values[key])


def test_the_long_run_says_how_far_it_came_and_names_a_false_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(linear_alarms, "DTYPES", ("float32",))
    monkeypatch.setattr(linear_alarms, "LINEAR", ["linear_attention"])
    monkeypatch.setattr(linear_alarms, "DELTA", ["delta_rule"])
    monkeypatch.setattr(linear_alarms, "alarms", lambda op, dtype, seed: [("recurrent", "[1]", {op: 2.0})] * seed)
    found = tmp_path / "alarms.json"
    assert linear_alarms.main(["--seeds", "2", "--json", str(found)]) == 1
    printed = capsys.readouterr().out
    assert "linear_attention  fp32     2 of 2 seeds, 4 cases of each, 5 forms: 1 false alarm" in printed
    assert "FALSE ALARM delta_rule fp32, seed 1: recurrent, [1]: {'delta_rule': 2.0}" in printed
    assert linear_alarms.main(["--seeds", "1", "--seconds", "0", "--json", str(found)]) == 3
    assert "0 of 2 judged, 0 with a false alarm" in capsys.readouterr().out
    assert found.read_text() == "[]\n"
