"""Correct forms of every op raise no false alarm, nor those of linear attention and the delta rule over 20,000 tokens.

`python -m tests.properties.false_alarms` is the long run, over 200 seeds.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from packproof.properties.bounds.oracle import oracle_answer, with_promises
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.sample import Sample
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS
from tests.properties import attention_kernels
from tests.properties.false_alarms import CASES, DTYPES, Judged, broken, judged, judgements, main, offers, space
from tests.properties.forms import forms, rounded_attention, rounded_ssd

LONG = 20_000
CHUNKED = "chunks of 64"


@pytest.mark.proof
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_correct_forms_raise_no_false_alarm(op: str, dtype: str) -> None:
    assert len(forms(op, dtype)) >= 2
    for seed in judged(op, dtype, range(2)):
        assert seed.false == ()
        assert seed.cases == CASES
        assert seed.judgements == CASES * len(forms(op, dtype))


def test_a_wrong_form_is_an_alarm() -> None:
    wrong = {"no gradient of the sinks": (attention_kernels.planted("no gradient of the sinks"), Promises())}
    case = Case((5,), "float32", tuple(OPS["attention"].sizes[0].items()), present=("sinks",))
    assert [found.keys() for _, found in judgements("attention", "float32", case, wrong)] == [{"gradient of sinks"}]


def test_each_form_has_the_budget_of_its_own_promises() -> None:
    """Chunks of the pack and of each sequence have other cumulative sums."""
    sizes = (("h", 2), ("p", 2), ("n", 17), ("g", 2))
    present, options = ("D", "z", "dt_bias", "initial_states"), (("dt_softplus", True), ("return_final_states", True))
    layout = Case((53, 31), "float64", sizes, slack=16, present=present, options=options, regime="hard decay")
    assert [form for form, found in judgements("ssd", "float64", layout) if found] == []


@pytest.mark.parametrize(("op", "form"), [("ssd", rounded_ssd), ("attention", rounded_attention)])
def test_forms_that_round_operands_are_correct_without_rounding(op: str, form: Any) -> None:
    case = Case((20, 0, 3), "float32", tuple(OPS[op].sizes[0].items()))
    sample, promises = draw(OPS[op], case), Promises(compute="fp32")
    want = oracle_answer(sample, promises, gradients=True)
    assert broken(partial(form, torch.clone), sample, want) == {}
    assert broken(partial(form, lambda x: x.bfloat16().float()), sample, want)


def test_each_thing_that_attention_offers_is_counted() -> None:
    named = offers(space("attention", "bfloat16"))
    assert {"sinks", "causal=True", "return_lse=True", "softcap=50.0", "softmax_scale=0.3", "keys of their own"} <= {
        *named
    }
    assert {"cos, sin in fp32", "offsets"} <= {*offers(space("rope", "float16"))}
    assert "cos, sin in fp32" not in offers(space("rope", "float32"))


def long(op: str, dtype: str) -> Sample:
    return draw(OPS[op], Case((LONG,), dtype, tuple(OPS[op].sizes[0].items()), seed=1))


@pytest.mark.proof
@pytest.mark.parametrize(("op", "dtype"), [("simple_gla", "bfloat16"), ("gated_delta_rule", "float32")])
def test_a_sequence_of_20000_tokens(op: str, dtype: str) -> None:
    """A correct form is within the budget, and late tokens that are wrong by a thousandth, or a sixtieth, are not."""
    sample = long(op, dtype)
    kernel, promises = forms(op, dtype)[CHUNKED]
    want = oracle_answer(sample, promises, gradients=True)
    assert broken(kernel, sample, want) == {}
    v = sample.inputs["v"].clone()
    v[-8:-4] *= 1.001 if dtype == "float32" else 1 + 2**-6
    wrong = replace(sample, inputs={**sample.inputs, "v": v})
    assert broken(kernel, wrong, want)["y"] > 1


def test_budgets_of_other_promises_are_those_of_a_run_with_them() -> None:
    sample = draw(OPS["gated_delta_rule"], Case((3, 5), "bfloat16", tuple(OPS["gated_delta_rule"].sizes[0].items())))
    want, own = (oracle_answer(sample, promises, gradients=True) for promises in (Promises(), Promises(compute="fp32")))
    found = with_promises(want, sample, Promises(compute="fp32"))
    assert found.vacuous == own.vacuous
    for key, allowed in own.budgets.items():
        assert found.budgets[key].total.equal(allowed.total)
        assert found.values[key].equal(own.values[key])


OFFERED = dict.fromkeys(offers(space("hadamard", "bfloat16")), 1)


def done(dtype: str, seed: int, *false: str, judgements: int = 12) -> Judged:
    return Judged("hadamard", dtype, seed, 4, judgements, OFFERED if seed else {}, 1.0, false)


def giving(*found: Judged) -> Callable[..., Iterator[Judged]]:
    return lambda units, device, **how: iter(found)


def test_the_long_run_says_how_far_it_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, asked = tmp_path / "alarms.jsonl", ["--op", "hadamard", "--seeds", "2"]
    whole = [done(dtype, seed) for dtype in DTYPES for seed in range(2)]
    assert main([*asked, "--json", str(lines)], giving(*whole)) == 0
    assert f"{'hadamard':<24}fp32     2 of 2 seeds, 8 cases, 3 forms, 24 judgements: 0 false alarms" in (
        capsys.readouterr().out
    )
    assert [json.loads(line)["seed"] for line in lines.read_text().splitlines()] == [0, 1] * len(DTYPES)

    assert main(asked, giving(*whole[1:])) == 3, "a seed is missing"
    assert main(asked, giving(*whole[:-1], done("float16", 1, judgements=0))) == 3, "nothing was judged at a seed"
    capsys.readouterr()
    assert main(asked, giving(*[replace(seed, offered={}) for seed in whole])) == 3, "something was never there"
    assert "NOT JUDGED hadamard: signs; signs in fp32" in capsys.readouterr().out


def test_the_long_run_names_a_false_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    alarm = done("float32", 1, "butterflies, [1]: {'y': 2.0}")
    assert main(["--op", "hadamard", "--seeds", "2"], giving(alarm)) == 1
    printed = capsys.readouterr().out
    assert "FALSE ALARM hadamard fp32, seed 1: butterflies, [1]: {'y': 2.0}" in printed
    assert "1 of 8 judged, 1 with a false alarm" in printed


def test_a_run_without_time_judges_nothing_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--op", "round_fp8", "--seeds", "1", "--seconds", "0"]) == 3
    assert "0 of 4 judged, 0 with a false alarm" in capsys.readouterr().out
