"""Budgets judge: a tensor that is a tenth off breaks its own, and where one is as large as the values, that is said.

That correct forms stay within them is in `test_absolute` and `test_false_alarms`.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.report.coverage import Coverage
from packproof.properties.bounds.budget import score
from packproof.properties.bounds.oracle import oracle_answer
from packproof.properties.calling.tensor_key import TensorKey, gradient
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.comparison import record_comparisons
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation, judge_case
from packproof.properties.laws.invariance import PACKING, REFERENCE
from packproof.properties.ops.catalogue import OPS
from tests.properties.delta_forms import in_dtype
from tests.properties.forms import rounded
from tests.properties.test_absolute import MARGIN, run, sample, scores

LONG = (53, 31)
SUMS = [("attention", "sinks"), ("ssd", "dt_bias"), ("ssd", "A"), ("retention", "decay"), ("simple_gla", "g")]
SUMS += [("attention", "q"), ("attention", "k"), ("delta_rule", "q")]


@pytest.mark.parametrize(("op", "name"), SUMS)
def test_a_gradient_a_tenth_off_breaks_its_budget_in_bf16(op: str, name: str) -> None:
    want = oracle_answer(sample(OPS[op], "bfloat16", lengths=LONG), Promises(), gradients=True)
    r, allowed = want.values[gradient(name)], want.budgets[gradient(name)]
    assert not allowed.vacuous
    assert float(score(1.1 * r, r, allowed.total).max()) > 1


@pytest.mark.parametrize("op", ["ssd", "retention", "simple_gla", "gated_delta_rule", "kda"])
def test_operands_in_fp16_may_hold_a_decay(op: str) -> None:
    """Below 2^-14 they are off by 2^-25, which is all that they hold where a token forgets."""
    s = sample(OPS[op], "float16", "hard decay", (33, 9, 1))
    kernel, promises = rounded(op, partial(in_dtype, torch.float16))
    assert max(scores(run(kernel, s), oracle_answer(s, promises, gradients=True)).values()) <= MARGIN


def scaled(kernel: Any, name: str, factor: float) -> Any:
    """A kernel whose gradient of one input is so many times too large in a pack of several."""

    def function(*, cu_seqlens: Tensor, **arguments: Any) -> Any:
        if len(cu_seqlens) > 2:
            x = arguments[name]
            arguments[name] = x.detach() + factor * (x - x.detach())
        return kernel(cu_seqlens=cu_seqlens, **arguments)

    return function


@pytest.mark.parametrize(("law", "factor"), [(REFERENCE, 1.1), (PACKING, 1.5)], ids=["reference", "packing"])
@pytest.mark.parametrize(("op", "name"), [("attention", "sinks"), ("ssd", "dt_bias"), ("retention", "decay")])
def test_a_shared_gradient_that_is_off_in_bf16_is_a_violation(law: Any, factor: float, op: str, name: str) -> None:
    """Two runs may err in opposite directions, and their sum over the sequences is smaller than they are."""
    sizes, present = tuple(OPS[op].sizes[0].items()), (name,) if name != "decay" else ()
    case = Case((30, 25, 38), "bfloat16", sizes, present=present, seed=3)
    correct = KernelUnderTest(OPS[op], InProcess(getattr(refs, op)), Promises())
    assert first_violation(correct, law, case) is None
    wrong = KernelUnderTest(OPS[op], InProcess(scaled(getattr(refs, op), name, factor)), Promises())
    found = first_violation(wrong, law, case)
    assert found is not None
    assert found.tensor == gradient(name)


def one_key(dtype: str) -> Case:
    sizes = (("hk", 1), ("hv", 1), ("k", 1), ("p", 1))
    return Case((4, 3), dtype, sizes, options=(("qk_l2norm", True),), regime="wide", seed=3)


def test_a_budget_that_cannot_judge_is_named() -> None:
    """The direction of one number has no derivative but 1e-6 of its norm."""
    want = oracle_answer(draw(OPS["delta_rule"], one_key("bfloat16")), Promises(), gradients=True)
    assert gradient("k") in want.vacuous
    assert not {TensorKey("y"), gradient("v"), gradient("beta")} & {*want.vacuous}
    plain = one_key("float32").replace(regime="normal")
    assert oracle_answer(draw(OPS["delta_rule"], plain), Promises(), gradients=True).vacuous == ()


def test_a_case_goes_on_past_a_tensor_that_it_cannot_judge() -> None:
    kernel = KernelUnderTest(OPS["delta_rule"], InProcess(refs.delta_rule), Promises())
    with record_comparisons() as made:
        assert judge_case(kernel, REFERENCE, one_key("bfloat16")) == (None, None)
    judges = {str(compared.key): compared.is_conclusive for compared in made}
    assert judges["y"]
    assert not judges["gradient of k"]


def test_an_element_outside_a_vacuous_budget_is_a_violation() -> None:
    wrong = KernelUnderTest(OPS["delta_rule"], InProcess(scaled(refs.delta_rule, "k", 1e9)), Promises())
    found = first_violation(wrong, REFERENCE, one_key("bfloat16"))
    assert found is not None
    assert found.tensor == gradient("k")


def test_a_tensor_that_is_zero_is_judged() -> None:
    """A query that sees one key has no gradient."""
    sizes = tuple(OPS["attention"].sizes[0].items())
    want = oracle_answer(draw(OPS["attention"], Case((1, 1), "bfloat16", sizes)), Promises(), gradients=True)
    assert not want.values[gradient("q")].any() or want.values[gradient("q")].abs().max() < 1e-12
    assert gradient("q") not in want.vacuous


def counted(**tensors: tuple[int, int]) -> Coverage:
    seen, case = Coverage(), Case((3, 2), "float32", (("d", 3),))
    for tensor, (telling, silent) in tensors.items():
        for judges in [True] * telling + [False] * silent:
            seen.count_comparison(tensor, is_decisive=judges)
    seen.count_case(case, frozenset(), compared=True, refusal=None)
    return seen


def test_a_tensor_that_no_example_judges_is_no_pass() -> None:
    never, elsewhere = counted(y=(2, 0), sinks=(0, 2)), counted(y=(2, 0), sinks=(1, 1))
    assert (never.status, elsewhere.status) == ("inconclusive", "passed")
    text = "sinks is not judged in {} of 2 examples, where its error bound is as large as its values"
    assert [*never.reasons()] == [text.format(2)]
    assert [*elsewhere.reasons()] == [text.format(1)]
    assert [*counted(y=(2, 0)).reasons()] == []
