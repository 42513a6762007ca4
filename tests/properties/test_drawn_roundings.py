"""The bound that drawn roundings give: it stays useful over long sequences, detects what it should, and is repeatable.

That correct forms stay within it is in `test_absolute`.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from packproof import refs
from packproof.base.errors import UsageError
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.bounds import budget
from packproof.properties.bounds.drawn_roundings import COPIES
from packproof.properties.bounds.oracle import oracle_answer
from packproof.properties.calling.tensor_key import TensorKey, gradient
from packproof.properties.cases.case import REGIMES, Case
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.sample import Sample
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.invariance import REFERENCE
from packproof.properties.ops.catalogue import OPS
from packproof.properties.ops.op import Op
from tests.properties.delta_forms import eleven_bits, form, in_dtype, with_inverse
from tests.properties.test_absolute import DELTA, MARGIN, run, sample, scores
from tests.sweeps import sweep

Y = TensorKey("y")


def plain(op: str, regime: str, tokens: int) -> Sample:
    """One sequence without options, whose keys have length 1 and whose beta is up to 2."""
    return draw(OPS[op], Case((tokens,), "float32", tuple(OPS[op].sizes[0].items()), regime=regime))


def share(s: Sample, rows: slice) -> float:
    """The budget of the outputs of some tokens, as a part of the outputs."""
    found = oracle_answer(s, Promises(compute="fp32"), gradients=False)
    return float(found.budgets[Y].total[rows].norm() / found.values[Y][rows].norm())


@sweep(
    "op, regime",
    sample=[("delta_rule", "long decay"), ("kda", "normal")],
    rest=[(op, regime) for op in DELTA for regime in ("normal", "long decay")],
)
def test_the_bound_of_late_tokens_is_that_of_early_ones(op: str, regime: str) -> None:
    """In absolute values it would be 1e100 times as large."""
    s = plain(op, regime, 500)
    early, late = share(s, slice(50, 100)), share(s, slice(450, 500))
    assert late < 4 * early
    assert late < 1e-4


@sweep("op", ["kda"], DELTA)
def test_a_token_wrong_by_a_thousandth_shows_after_hundreds(op: str) -> None:
    s = plain(op, "normal", 300)
    v = s.inputs["v"].clone()
    v[280:284] *= 1.001
    wrong = replace(s, inputs={**s.inputs, "v": v})
    found = scores(run(OPS[op].reference, wrong), oracle_answer(s, Promises(), gradients=True))
    assert found[Y] > 4
    assert found[gradient("beta")] > 4


@sweep("op", ["kda"], DELTA)
def test_rounded_operands_need_their_own_term(op: str) -> None:
    without = 0.0
    for regime in REGIMES[::2]:
        s = sample(OPS[op], "bfloat16", regime)
        got = run(form(op, partial(with_inverse, partial(in_dtype, torch.bfloat16), False)), s)
        assert max(scores(got, oracle_answer(s, Promises(), gradients=True)).values()) <= MARGIN, regime
        without = max(without, *scores(got, oracle_answer(s, Promises(compute="fp32"), gradients=True)).values())
    assert without > 1


@sweep("op", ["kda"], DELTA)
def test_the_same_call_has_the_same_bound(op: str) -> None:
    s = sample(OPS[op], "float32")
    first, second = (oracle_answer(s, Promises(), gradients=True).magnitudes for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("lengths", [(), (0,), (0, 2, 0)])
@sweep("op", ["kda"], DELTA)
def test_packs_of_nothing_have_a_bound(op: str, lengths: tuple[int, ...]) -> None:
    s = sample(OPS[op], lengths=lengths)
    for promises in (Promises(), Promises(chunk=16, cumsum=True)):
        bounds = oracle_answer(s, promises, gradients=True).magnitudes
        assert all(bound.isfinite().all() for bound in bounds.values())
        assert not bounds[Y][sum(lengths) :].any()


@pytest.mark.parametrize("copies", [3, COPIES // 2])
def test_more_copies_than_memory_holds_run_one_after_another(monkeypatch: pytest.MonkeyPatch, copies: int) -> None:
    """Each has signs of its own: with the same ones the bound would be that of one copy, near 0 at many elements."""
    s = sample(OPS["delta_rule"], "float32")
    at_once = oracle_answer(s, Promises(), gradients=True).magnitudes
    elements = 24 * 2 * 4 * 3
    monkeypatch.setattr("packproof.properties.bounds.drawn_roundings.MAX_ELEMENTS_AT_ONCE", elements * copies)
    in_parts = oracle_answer(s, Promises(), gradients=True).magnitudes
    for key, bound in at_once.items():
        assert not torch.equal(bound, in_parts[key])
        assert float(in_parts[key].norm()) == pytest.approx(float(bound.norm()), rel=0.2)
        of_each = in_parts[key][bound > 0] / bound[bound > 0]  # two root mean squares of 64
        assert float(of_each.min()) > 1 / 2
        assert float(of_each.max()) < 2


def test_an_op_has_one_kind_of_bound() -> None:
    both = {**vars(OPS["kda"]), "absolute": refs.kda}
    with pytest.raises(UsageError, match="where there is no `absolute`"):
        Op(**{name: value for name, value in both.items() if name in Op.__dataclass_fields__})


@sweep("op", ["kda"], ["gated_delta_rule"])
def test_operands_in_fp16_lose_what_decays_below_their_range(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their precision is enough: with exponents of any size the same form needs no more."""
    sizes, options = tuple(OPS[op].sizes[0].items()), (("return_final_states", True),)
    case = Case((33, 9, 1), "float16", sizes, present=("initial_states",), options=options, regime="hard decay", seed=2)
    s = draw(OPS[op], case)
    of_any_size, of_fp16 = (
        run(form(op, partial(with_inverse, round_to, False)), s)
        for round_to in (eleven_bits, partial(in_dtype, torch.float16))
    )
    assert max(scores(of_fp16, oracle_answer(s, Promises(), gradients=True)).values()) <= MARGIN
    monkeypatch.setitem(budget.SMALLEST_NORMAL, torch.float16, 0.0)
    without = oracle_answer(s, Promises(), gradients=True)
    assert max(scores(of_any_size, without).values()) <= MARGIN
    assert scores(of_fp16, without)[gradient("initial_states")] > 1


@pytest.mark.parametrize(("excess", "is_violation"), [(0.9, False), (1.1, True)])
def test_an_excess_by_few_copies_is_judged_by_more(excess: float, is_violation: bool) -> None:
    """States of 65 x 64 elements are large: with few copies, the budget of some elements is too small by chance."""
    op, case = OPS["delta_rule"], Case((3,), "float32", (("hk", 1), ("hv", 1), ("k", 65), ("p", 64)))
    s = draw(op, case)
    few, more = (oracle_answer(s, Promises(), gradients=False, copies=n).budgets[Y].total for n in (None, COPIES))
    element = (more / few).argmax()
    assert excess * more.flatten()[element] > few.flatten()[element]

    def kernel(*inputs: torch.Tensor, **options: Any) -> torch.Tensor:
        y: torch.Tensor = refs.delta_rule(*(x.double() for x in inputs), **options)
        y.view(-1)[element] += excess * more.flatten()[element]
        return y

    subject = KernelUnderTest(op, InProcess(kernel), Promises(), gradients=False)
    assert bool(list(REFERENCE.check(subject, case))) == is_violation


@sweep("dtype", ["bfloat16"], ["float32"])
@pytest.mark.parametrize("op", ["ssd", "simple_gla"])
def test_a_subnormal_operand_widens_no_budget_that_it_does_not_reach(op: str, dtype: str) -> None:
    """Decays of 1e-100 are subnormal in bf16, and reach no element of a size that matters."""
    promises = Promises("sequence", 16, "operand" if dtype == "bfloat16" else "tf32", cumsum=True)
    for k, sizes in enumerate(OPS[op].sizes[:2]):
        s = draw(OPS[op], Case((130, 0, 31), dtype, tuple(sizes.items()), regime="hard decay", seed=k))
        answer = oracle_answer(s, promises, gradients=True)
        largest = budget.K_OP * budget.operand_roundoff(OPS[op], promises, s.token_dtype)
        for key, allowed in answer.budgets.items():
            assert bool((allowed.operands <= 1.001 * largest * answer.magnitudes[key]).all()), key


@sweep("op", ["kda"], ["gated_delta_rule"])
def test_operands_in_fp32_have_the_range_of_fp32(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s, in_fp32 = draw(OPS[op], _decaying(op)), Promises("sequence", 16, "fp32", cumsum=True)
    allowed = oracle_answer(s, in_fp32, gradients=True).budgets
    with monkeypatch.context() as patched:
        patched.setitem(budget.SMALLEST_NORMAL, torch.float16, 0.0)
        of_any_range = oracle_answer(s, in_fp32, gradients=True).budgets
    for key, tensor_budget in allowed.items():
        torch.testing.assert_close(tensor_budget.total, of_any_range[key].total, rtol=1e-6, atol=1e-30)
    in_fp16 = oracle_answer(s, replace(in_fp32, compute="operand"), gradients=True).budgets
    assert bool((in_fp16[gradient("A_log")].accumulation > 10 * allowed[gradient("A_log")].accumulation).any())


def _decaying(op: str) -> Case:
    sizes, present = tuple(OPS[op].sizes[0].items()), ("A_log", "dt_bias", "initial_states")
    return Case((53, 0, 31, 1), "float16", sizes, present=present, regime="hard decay", seed=1)
