"""Parameters in fp32 beside tokens of 16 bits: a kernel that rounds them, or their gradients, fails `reference`."""

from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.base.errors import UsageError
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.drawing import draw
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import check_signature, describe_kernel, kernel, parse_declaration
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import CAUSAL_CONV1D, ROPE, SSD
from tests.sweeps import sweep

OPTIONS: dict[str, Any] = {"float32": tuple(sorted(CAUSAL_CONV1D.float32)), "max_tokens": 60}


def with_a_narrow_gradient(x: Tensor, weight: Tensor, **call: Any) -> Any:
    """The gradient of the filter is rounded to the dtype of x on its way."""
    weight = weight + 0.0
    if weight.requires_grad:
        weight.register_hook(lambda g: g.to(x.dtype).to(g.dtype))
    return refs.causal_conv1d(x, weight, **call)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, dtype: torch.dtype) -> Tensor:
        return weight.to(dtype).to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def with_a_narrow_filter(x: Tensor, weight: Tensor, **call: Any) -> Any:
    """The filter is rounded to the dtype of x before use; its gradient is not."""
    return refs.causal_conv1d(x, _Rounded.apply(weight, x.dtype), **call)


def with_narrow_states(x: Tensor, weight: Tensor, *, initial_states: Tensor | None = None, **call: Any) -> Any:
    """The initial states are rounded to the dtype of x before use."""
    states = None if initial_states is None else _Rounded.apply(initial_states, x.dtype)
    return refs.causal_conv1d(x, weight, initial_states=states, **call)


def first_failure(function: Any, dtype: str, **options: Any) -> Any:
    under_test = KernelUnderTest(CAUSAL_CONV1D, InProcess(function), Promises(compute="fp32"))
    space = Space(CAUSAL_CONV1D, dtype, Promises(compute="fp32"), **options)
    found = (first_violation(under_test, PROPERTIES["reference"], case) for case in golden_cases(space))
    return next(filter(None, found), None)


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(with_a_narrow_gradient, "bfloat16"), (with_a_narrow_filter, "float16"), (with_narrow_states, "bfloat16")],
)
def test_a_rounded_parameter_or_gradient_is_detected(function: Any, dtype: str) -> None:
    assert first_failure(function, dtype, **OPTIONS) is not None
    assert first_failure(function, dtype) is None, "all of one dtype, it is correct"


@sweep("dtype", ["bfloat16"], ["float16"])
def test_the_reference_passes(dtype: str) -> None:
    assert first_failure(refs.causal_conv1d, dtype, **OPTIONS) is None


def test_the_narrow_gradient_is_named() -> None:
    found = first_failure(with_a_narrow_gradient, "bfloat16", **OPTIONS)
    assert str(found.tensor) == "gradient of weight"
    assert found.term.startswith("accumulation"), found.term


def test_cases_have_none_the_parameters_or_all_in_fp32() -> None:
    drawn = [c for c in golden_cases(Space(CAUSAL_CONV1D, "bfloat16", Promises(), **OPTIONS)) if c.present]
    assert {c.float32 for c in drawn} >= {(), ("weight", "bias"), ("weight", "bias", "initial_states")}
    for case in drawn:
        for name, x in draw(CAUSAL_CONV1D, case).inputs.items():
            assert x.dtype == (torch.float32 if name in case.float32 else torch.bfloat16)
            assert (f"{name}" in case.setting.partition(" in fp32")[0]) >= (name in case.float32)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wider_tokens_have_parameters_of_their_own_dtype(dtype: str) -> None:
    space = Space(CAUSAL_CONV1D, dtype, Promises(), **OPTIONS)
    assert not any(case.float32 for case in golden_cases(space))


def test_a_kernel_that_declares_nothing_gets_one_dtype() -> None:
    assert not any(case.float32 for case in golden_cases(Space(CAUSAL_CONV1D, "bfloat16", Promises())))


def test_rope_has_its_tables_in_fp32_or_in_the_dtype_of_the_tokens() -> None:
    space = Space(ROPE, "bfloat16", Promises(), float32=("cos", "sin"))
    assert {case.float32 for case in golden_cases(space)} == {(), ("cos", "sin")}


def test_a_declaration_names_inputs_that_the_op_has_so() -> None:
    @kernel(op="ssd", float32=["dt"])
    def ssd(x, dt, A, B, C, *, cu_seqlens):
        return x

    with pytest.raises(UsageError, match="mine: float32 has 'dt'; of ssd these may be fp32 beside tokens: none"):
        check_signature(SSD, parse_declaration(describe_kernel(ssd), "mine"), "mine")
