"""Kernels that go on with numbers stored in fp16: what underflows there is within the budget, and no more than that."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from packproof.harness.process.execution.execute import InProcess
from packproof.properties.calling.tensor_key import gradient
from packproof.properties.cases.case import Case
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, first_violation
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS

OP = OPS["linear_cross_entropy"]


class _StoredGradients(torch.autograd.Function):
    """The gradients are computed in the forward pass, stored in the tokens' dtype, and scaled in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        logits, counts, n = x.float() @ weight.float().T, labels >= 0, (labels >= 0).sum().clamp(min=1)
        loss = cross_entropy(logits, labels.long(), reduction="sum") / n
        d = (logits.softmax(-1) - one_hot(labels.clamp(min=0).long(), len(weight))) * counts[:, None] / n
        d = d.to(x.dtype).float()
        ctx.save_for_backward((d @ weight.float()).to(x.dtype), (d.T @ x.float()).to(x.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, dw = ctx.saved_tensors
        return dx * dy[0].to(dx.dtype), (dw * dy[0]).to(dw.dtype), None


def loss(x: Tensor, weight: Tensor, labels: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    value: Tensor = _StoredGradients.apply(x, weight, labels)
    return value


def off_by_a_fiftieth(x: Tensor, weight: Tensor, labels: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return loss(x, weight + (weight - weight.detach()) / 50, labels, cu_seqlens=cu_seqlens)


@pytest.mark.parametrize(("kernel", "passes"), [(loss, True), (off_by_a_fiftieth, False)])
def test_a_gradient_that_underflows_before_it_is_scaled_is_within_the_budget(kernel: Any, passes: bool) -> None:
    """Of a thousand words most have a gradient of a few of fp16's smallest numbers."""
    for seed in range(12):
        case = Case((2, 3), "float16", (("nv", 1031), ("d", 64)), seed=seed)
        subject = KernelUnderTest(OP, InProcess(kernel), Promises(compute="operand"))
        violation = first_violation(subject, PROPERTIES["reference"], case)
        assert (violation is None) == passes, violation and violation.lines()
        assert passes or (violation and violation.tensor == gradient("weight"))
