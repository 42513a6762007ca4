"""What a kernel returned, and what it was given, stays as it is during the backward pass: `memory` compares both."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import OPS
from tests.sweeps import sweep

CASE = Case((3, 0, 5), "float32", (("d", 3), ("w", 4)))


Change = Callable[[Tensor, Tensor, Tensor], object]
"""Changes the input or the output of a call: its input, its output and the correct output."""


class _Convolution(torch.autograd.Function):
    """A convolution: `at_return` and `in_backward` may change its output or its input."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, cu_seqlens: Tensor, at_return: Change | None, in_backward: Change | None
    ) -> Tensor:
        y = refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens).detach()
        ctx.tensors, ctx.value, ctx.in_backward = (x, weight, cu_seqlens, y), y.clone(), in_backward
        if at_return:
            at_return(x, y, ctx.value)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, cu_seqlens, y = ctx.tensors
        if ctx.in_backward:
            ctx.in_backward(x, y, ctx.value)
        with torch.enable_grad():
            leaves = x.detach().clone().requires_grad_(), weight.detach().requires_grad_()
            gradients = torch.autograd.grad(refs.causal_conv1d(*leaves, cu_seqlens=cu_seqlens), leaves, dy)
        return (*gradients, None, None, None)


def _double_input(x: Tensor, y: Tensor, value: Tensor) -> None:
    x.data.mul_(2)


def _halve_input(x: Tensor, y: Tensor, value: Tensor) -> None:
    x.data.mul_(0.5)


def _zero_output(x: Tensor, y: Tensor, value: Tensor) -> None:
    y.data.zero_()


def _fill_output(x: Tensor, y: Tensor, value: Tensor) -> None:
    y.data.copy_(value)


OUTPUT = "y was changed during the backward pass: what a kernel has returned is the caller's"
KERNELS: dict[str, tuple[Change | None, Change | None, str]] = {
    "zeros at return, filled in later": (_zero_output, _fill_output, OUTPUT),
    "the output is workspace": (None, _zero_output, OUTPUT),
    "the input is workspace": (
        None,
        _double_input,
        "x was changed during the backward pass: inputs are the caller's",
    ),
    "the input is workspace from the forward pass on": (
        _double_input,
        None,
        "x was changed by the kernel: inputs are the caller's",
    ),
    "the input is restored": (
        _double_input,
        _halve_input,
        "x was changed by the kernel, and restored in the backward pass: inputs are the caller's",
    ),
}


def _judge(law: str, at_return: Change | None, in_backward: Change | None) -> Violation | None:
    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        return _Convolution.apply(x, weight, cu_seqlens, at_return, in_backward)

    under_test = KernelUnderTest(OPS["causal_conv1d"], InProcess(kernel), Promises())
    return first_violation(under_test, PROPERTIES[law], CASE)


@pytest.mark.parametrize("name", KERNELS)
def test_a_change_of_output_or_input_fails_with_its_moment(name: str) -> None:
    at_return, in_backward, text = KERNELS[name]
    violation = _judge("memory", at_return, in_backward)
    assert violation is not None
    assert violation.text == text


def test_values_at_return_are_judged() -> None:
    at_return, in_backward, _ = KERNELS["zeros at return, filled in later"]
    late = _judge("reference", at_return, in_backward)
    assert late is not None
    assert (str(late.tensor), late.got) == ("y", 0.0)
    at_return, in_backward, _ = KERNELS["the output is workspace"]
    assert _judge("reference", at_return, in_backward) is None


@sweep("law", ["memory", "reference", "determinism"], ["torch_compile"])
def test_a_kernel_that_changes_nothing_passes(law: str) -> None:
    assert _judge(law, None, None) is None
