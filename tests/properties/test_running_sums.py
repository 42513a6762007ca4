"""Kernels that promise `cumsum`: the budget of a running sum is that of the terms in it, whatever operands round to."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof.harness.process.execution.execute import InProcess
from packproof.properties.bounds.budget import score
from packproof.properties.bounds.oracle import oracle_answer
from packproof.properties.bounds.running_sums import chunk_totals, prefix_sums, suffix_sums
from packproof.properties.calling.tensor_key import TensorKey, gradient
from packproof.properties.cases.case import REGIMES, Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.sample import Sample
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.invariance import REFERENCE
from packproof.properties.ops.catalogue import OPS
from tests.properties import delta_forms, linear_forms
from tests.properties.orders_of_summation import ORDERS, Order
from tests.properties.test_absolute import MARGIN, run, scores
from tests.sweeps import sweep

LENGTHS = (48, 0, 5, 1)
GATES = ("simple_gla", "gated_delta_rule", "kda")
ROUNDED = Promises("sequence", delta_forms.CHUNK, "operand", cumsum=True)
EXACT = Promises("sequence", delta_forms.CHUNK, "fp32", cumsum=True)
SAMPLE = (("gated_delta_rule", "tree"), ("simple_gla", "sequential"))  # all orders of each op are a proof


def plain(op: str, dtype: str, regime: str) -> Sample:
    return draw(OPS[op], Case(LENGTHS, dtype, tuple(OPS[op].sizes[0].items()), regime=regime, seed=1))


def with_sums(op: str, order: Order, round_to: Any) -> Any:
    """The correct form with running sums in this order."""
    if op == "simple_gla":
        return linear_forms.form(op, linear_forms.limited(partial(linear_forms.gradients_of_sums, round_to, order)))
    return delta_forms.form(op, delta_forms.limited(partial(delta_forms.gradients_of_sums, round_to, order)))


@sweep("regime", ["hard decay"], ["normal", "long decay"])
@pytest.mark.parametrize("op", GATES)
def test_a_gates_gradient_off_by_its_own_size_is_detected(op: str, regime: str) -> None:
    """Operands are rounded, sums of gates are not: with one bound for both, it passed beside strong gates."""
    want = oracle_answer(plain(op, "bfloat16", regime), ROUNDED, gradients=True)
    for key, r in want.values.items():
        assert key not in want.vacuous, key
        assert float(score(2 * r, r, want.budgets[key].total).max()) > 4, key


@sweep("op", ["kda"], ["gated_delta_rule"])
def test_shared_gradients_of_gates_are_judged_over_whole_chunks(op: str) -> None:
    """With the norm of keys and gates of their own, in chunks of 64: their budgets were larger than they are."""
    present, options = ("dt_bias", "A_log", "initial_states"), tuple((n, v[-1]) for n, v in OPS[op].options.items())
    case = Case((53, 31), "bfloat16", tuple(OPS[op].sizes[0].items()), present=present, options=options)
    want = oracle_answer(draw(OPS[op], case), Promises("sequence", 64, "operand", cumsum=True), gradients=True)
    for name in ("A_log", "dt_bias"):
        key = gradient(name)
        assert key not in want.vacuous
        assert float(score(2 * want.values[key], want.values[key], want.budgets[key].total).max()) > 1


@sweep("regime", ["hard decay"], ["normal"])
@pytest.mark.parametrize("op", GATES)
def test_a_kernel_with_twice_the_gradient_of_a_gate_is_detected(op: str, regime: str) -> None:
    case = Case(LENGTHS, "bfloat16", tuple(OPS[op].sizes[0].items()), regime=regime, seed=1)
    correct = with_sums(op, ORDERS["tree"], partial(delta_forms.in_dtype, torch.bfloat16))

    def twice(*, g: Tensor, **arguments: Any) -> Any:
        return correct(g=g.detach() + 2 * (g - g.detach()), **arguments)

    subjects = (KernelUnderTest(OPS[op], InProcess(kernel), ROUNDED) for kernel in (correct, twice))
    passes, fails = (first_violation(subject, REFERENCE, case) for subject in subjects)
    assert passes is None
    assert fails is not None
    assert fails.tensor == gradient("g")


@pytest.mark.parametrize("op", GATES)
def test_values_are_judged_as_without_sums(op: str) -> None:
    """The errors of fp32 sums are far below the roundings of 16-bit operands."""
    s = plain(op, "bfloat16", "hard decay")
    with_cumsum, without = (oracle_answer(s, p, gradients=True).budgets for p in (ROUNDED, Promises()))
    for key in (TensorKey("y"), gradient("q"), gradient("k"), gradient("v")):
        assert float(with_cumsum[key].total.norm()) < 1.4 * float(without[key].total.norm()), key


@pytest.mark.parametrize(
    ("op", "order"),
    [
        pytest.param(op, order, marks=() if (op, order) in SAMPLE else pytest.mark.proof)
        for op in GATES
        for order in ORDERS
    ],
)
def test_every_order_of_summation_stays_within_the_budget(op: str, order: str) -> None:
    regimes = REGIMES[:: 1 if order in ("sequential", "tree") else 2]
    bf16: Any = partial(delta_forms.in_dtype, torch.bfloat16)
    for dtype, round_to, promises in (("float32", Tensor.clone, EXACT), ("bfloat16", bf16, ROUNDED)):
        for regime in regimes:
            s = plain(op, dtype, regime)
            worst = scores(run(with_sums(op, ORDERS[order], round_to), s), oracle_answer(s, promises, gradients=True))
            print(op, order, dtype, regime, *(f"{key}: {worst[key]:.2f}" for key in worst))
            assert max(worst.values()) <= MARGIN, (regime, dtype, worst)


def test_sums_of_a_chunk() -> None:
    x = torch.arange(1.0, 6).requires_grad_()
    promises = Promises(grid="sequence", chunk=3)
    E = prefix_sums([x[:4], x[4:]], promises, x)
    assert E.tolist() == [1, 3, 6, 4, 5]
    assert chunk_totals([x[:4], x[4:]], promises, x).tolist() == [6, 6, 6, 4, 5]
    assert suffix_sums([x[:4], x[4:]], promises, x).tolist() == [6, 5, 3, 4, 5]
    assert prefix_sums([x[:4], x[4:]], Promises(grid="pack", chunk=3), x).tolist() == [1, 3, 6, 4, 9]
    [of_terms] = torch.autograd.grad(E[0], x)
    assert of_terms.tolist() == [1, 1, 1, 0, 0]  # the sum over the chunk minus what comes after
