"""Gates that forget all, down to -inf: they are drawn for every op with decays, and judged by budgets that mean it."""

import math
from typing import Any

import pytest
import torch

import packproof
from packproof.base.axes import parse
from packproof.properties.bounds.oracle import oracle_answer
from packproof.properties.cases.case import STRONG_GATES, Case
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.random_cases import random_cases
from packproof.properties.cases.sample import Sample
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.laws.state_passing import CARRY
from packproof.properties.ops.catalogue import OPS
from packproof.properties.ops.op import Op
from tests.properties import running_sums

FORGETTING = [op for op in OPS.values() if op.has_decays]
GATES = {"simple_gla": "g", "retention": "decay", "gated_delta_rule": "g", "kda": "g", "gated_delta_rule_update": "g"}


def space(op: Op, *domain: str) -> Space:
    return Space(op, "float32", Promises(), domain=Domain.of(domain))


def strong(op: Op, size: int, seed: int, *, full: bool = True) -> Sample:
    lengths = (1,) * 9 if op.pool else (17, 0, 5)
    present = tuple(name for name, spec in op.inputs.items() if parse(spec).optional) if full else ()
    options = tuple((name, values[-1]) for name, values in op.options.items())
    sizes = tuple(op.sizes[size].items())
    return draw(op, Case(lengths, "float32", sizes, 0, present, (), options, STRONG_GATES, seed=seed))


def test_they_are_drawn_for_ops_with_decays_and_no_others() -> None:
    names = {"selective_scan", "ssd", "simple_gla", "retention", "gated_delta_rule", "kda"}
    assert {op.name.removesuffix("_update").removesuffix("_verify") for op in FORGETTING} == names
    for op in OPS.values():
        for drawn in (list(golden_cases(space(op))), random_cases(space(op), 30 if op.has_decays else 8, seed=1)):
            assert any(case.regime == STRONG_GATES for case in drawn) == op.has_decays, op.name


@pytest.mark.parametrize("op", [OPS[name] for name in GATES], ids=lambda op: op.name)
def test_a_gate_may_be_of_any_strength(op: Op) -> None:
    found = torch.cat([strong(op, 2, seed, full=False).inputs[GATES[op.name]].flatten() for seed in range(4)])
    for least, most in ((-3e4, -1e4), (-3e9, -1e9), (-3e20, -1e20), (-math.inf, -math.inf), (-1, 0)):
        assert ((least <= found) & (found <= most)).any(), (least, most)


@pytest.mark.parametrize("op", FORGETTING, ids=lambda op: op.name)
def test_budgets_are_numbers_and_far_from_what_they_judge(op: Op) -> None:
    for full in (False, True):
        s = strong(op, 0, 0, full=full)
        found = oracle_answer(s, Promises(chunk=16, compute="fp32"), gradients=op.differentiable)
        assert found.vacuous == ()
        for key, value in found.values.items():
            allowed = found.budgets[key].total
            assert value.isfinite().all(), key
            assert allowed.isfinite().all(), key
            assert (allowed <= 0.01 * value.square().mean().sqrt() + 1e-9).double().mean() > 0.5, key


@pytest.mark.proof
def test_a_running_sum_is_found_out_and_told_the_domain_without_them() -> None:
    options: dict[str, Any] = {"device": "cpu", "dtypes": ["fp32"], "properties": ["reference"], "profile": "quick"}
    with pytest.raises(packproof.CheckFailed) as failed:
        packproof.check(running_sums.running_sums, **options)
    shown = str(failed.value)
    assert "strong gates" in shown
    assert "spoil other tokens" in shown
    assert "declare domain='gate > -1e4'" in shown
    packproof.check(running_sums.running_sums, domain="gate > -1e4", **options)
    packproof.check(running_sums.limited_sums, **options)


def test_a_domain_without_them_keeps_the_layouts() -> None:
    op = OPS["ssd"]
    weak, every = list(golden_cases(space(op, "gate > -1e4"))), list(golden_cases(space(op)))
    assert [case.lengths for case in weak] == [case.lengths for case in every]
    assert not any(case.regime == STRONG_GATES for case in weak)
    assert [case.lengths for case in golden_cases(space(op, "gate >= -1e30"))] == [case.lengths for case in every]
    with pytest.raises(packproof.UsageError, match="'gate'"):
        Domain.of("gate > -1e4").check(OPS["causal_conv1d"], "--domain")


@pytest.mark.parametrize(("promises", "drawn"), [(Promises(cumsum=True), False), (Promises(), True)])
def test_a_state_with_the_errors_of_other_sums_is_not_compared(promises: Promises, drawn: bool) -> None:
    where = Space(OPS["ssd"], "float32", promises)
    regimes = {case.regime for case in CARRY.suited(where, list(golden_cases(where)))}
    assert (STRONG_GATES in regimes) is drawn
    assert "hard decay" in regimes
