"""Packs that repeat themselves: the oracle's answer of one period is that of the whole pack."""

import json

import pytest
import torch

from packproof.properties.bounds.oracle import OracleAnswer, oracle_answer
from packproof.properties.bounds.repeated_packs import repeated_answer, repeats_itself
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space
from packproof.properties.declarations.promises import Promises
from packproof.properties.ops.catalogue import OPS
from packproof.properties.thresholds.cases import SparsePacks

CUMSUM = Promises(grid="pack", chunk=8, cumsum=True)
DRAWN = 2.0  # factor between two budgets that were drawn with other signs, see `drawn_roundings`


def answer_of(sample: Sample, promises: Promises) -> OracleAnswer:
    return oracle_answer(sample, promises, gradients=sample.op.differentiable)


@pytest.mark.parametrize("promises", [Promises(), CUMSUM], ids=["plain", "cumsum"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("causal_conv1d", "attention", "simple_gla") else pytest.mark.proof)
        for name, op in OPS.items()
        if not op.pool
    ],
)
def test_the_answer_of_a_period_is_that_of_the_pack(name: str, promises: Promises) -> None:
    op = OPS[name]
    packs = SparsePacks(Space(op, "float32", promises))
    for case in (packs.single_tokens(35), packs.short_sequences(41)):
        sample = draw(op, case)
        assert repeats_itself(sample)
        answer = repeated_answer(sample, promises, lambda part: answer_of(part, promises))
        whole = answer_of(sample, promises)
        assert answer.values.keys() == whole.values.keys() == answer.budgets.keys()
        for key, x in whole.values.items():
            torch.testing.assert_close(answer.values[key], x, rtol=1e-12, atol=1e-12)
            is_drawn = op.roundings is not None or op.operands is not None
            if not is_drawn:
                total = whole.budgets[key].total
                torch.testing.assert_close(answer.budgets[key].total, total, rtol=1e-9, atol=1e-30)
            elif not sample.axes[key.name] or sample.axes[key.name][0] in ("t", "s"):
                ratio = answer.budgets[key].total / whole.budgets[key].total
                assert bool(((ratio < DRAWN) & (ratio > 1 / DRAWN) | ratio.isnan()).all())


def test_a_rearranged_pack_no_longer_repeats_itself() -> None:
    op = OPS["causal_conv1d"]
    packs = SparsePacks(Space(op, "float32", Promises()))
    sample, other = (draw(op, packs.single_tokens(20).replace(seed=seed)) for seed in (0, 1))
    assert repeats_itself(sample)
    assert not repeats_itself(sample.keep_only(3, other))
    assert not repeats_itself(sample.alone(3))
    assert not repeats_itself(sample.followed_by((), 1))
    assert repeats_itself(sample.select(range(13)))


def test_half_of_a_period_has_the_incoming_gradients_of_the_other_with_the_opposite_sign() -> None:
    op = OPS["causal_conv1d"]
    case = SparsePacks(Space(op, "float32", Promises(), ("x", "weight", "cu_seqlens"))).single_tokens(13)
    sample = draw(op, case)
    dy, x = sample.cotangents["y"], sample.inputs["x"]
    assert case.period == 6
    assert torch.equal(dy[:3], -dy[3:6])
    assert torch.equal(dy[:6], dy[6:12])
    assert torch.equal(x[:3], x[3:6])
    assert not torch.equal(x[0], x[1])


def test_a_case_with_a_period_survives_its_json() -> None:
    case = SparsePacks(Space(OPS["ssd"], "float32", Promises())).short_sequences(100)
    assert case.period
    assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case
    assert "every 8 sequences alike" in str(case)


def test_a_period_that_the_lengths_do_not_have_is_ignored() -> None:
    case = SparsePacks(Space(OPS["ssd"], "float32", Promises())).single_tokens(30)
    assert case.half_period == 3
    changed = case.with_lengths((*case.lengths[:-1], 2))
    assert changed.half_period == 0
    assert draw(OPS["ssd"], changed).lengths == changed.lengths
