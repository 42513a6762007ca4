"""Correct forms of linear attention and the delta rule raise no false alarm, at any seed, nor over 20,000 tokens.

`PACKPROOF_SEEDS=200 python -m pytest -n auto -m proof tests/properties/test_linear_false_alarms.py` is the long run.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from packproof.harness.execution.execute import InProcess
from packproof.properties.bounds.budget import score
from packproof.properties.bounds.oracle import Expected, expected
from packproof.properties.cases.case import Case
from packproof.properties.cases.sample import Sample, draw
from packproof.properties.cases.space import Space, random_cases
from packproof.properties.ops import OPS
from packproof.properties.promises import Promises
from packproof.properties.tensor_key import TensorKey, gradient
from tests.properties import delta_forms, linear_forms
from tests.properties.linear_bugs import DELTA, LINEAR

SEEDS = int(os.environ.get("PACKPROOF_SEEDS", "2"))
CASES = 4  # of each seed
LONG = 20_000
CHUNKED = "chunks of 64"


def broken(kernel: Callable[..., Any], sample: Sample, want: Expected) -> dict[str, float]:
    """The tensors that break the budget, and by how much."""
    result = InProcess(kernel).run(sample.call())
    got = {TensorKey(name): y for name, y in result.outputs.items()}
    got |= {gradient(name): g for name, g in result.gradients.items()}
    worst = {str(n): float(score(x, want.values[n], want.budgets[n].total).max()) for n, x in got.items() if x.numel()}
    return {name: found for name, found in worst.items() if not found <= 1}


def forms(op: str, dtype: str) -> dict[str, tuple[Callable[..., Any], Promises]]:
    """In 16 bits one that rounds its operands too."""
    of_family = delta_forms if op in DELTA else linear_forms
    found = of_family.forms(op)
    if dtype == "bfloat16":
        recurrence, promises = of_family.ROUNDING
        found["rounded operands"] = of_family.form(op, recurrence), promises
    return found


def alarms(op: str, dtype: str, seed: int) -> Iterator[tuple[str, str, dict[str, float]]]:
    """The form, the case, and what breaks the budget."""
    space = Space(OPS[op], dtype, delta_forms.CUMSUM)
    for case in random_cases(space, CASES, seed):
        sample, memo = draw(OPS[op], case), dict[Promises, Expected]()
        for name, (kernel, promises) in forms(op, dtype).items():
            if promises not in memo:
                memo[promises] = expected(sample, promises, gradients=True)
            if found := broken(kernel, sample, memo[promises]):
                yield name, str(case), found


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
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
