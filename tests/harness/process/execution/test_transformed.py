"""Calls inside torch.func.vjp and torch.vmap: the results of a plain call, of a kernel that torch can transform."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.adapters import once
from packproof.base.errors import KernelFault
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.calling import Call, Mode, Result
from tests.siblings import steps

TRANSFORMED: tuple[Mode, ...] = ("torch.func.vjp", "torch.vmap")


def convolve(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Any:
    return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


class _Doubled(torch.autograd.Function):
    """Without a context of its own: torch.func raises."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return 2 * d


def result(kernel: Callable[..., Any], mode: Mode, wrt: tuple[str, ...] = ("x", "weight")) -> Result:
    generator = torch.Generator().manual_seed(0)
    inputs = {"x": torch.randn(5, 3, generator=generator), "weight": torch.randn(3, 4, generator=generator)}
    incoming = {"y": torch.randn(5, 3, generator=generator)} if wrt else {}
    offsets = torch.tensor([0, 2, 5], dtype=torch.int32)
    rows = {"token_rows": ("x", "y"), "shared": ("weight",)}
    return InProcess(kernel).run(Call(inputs, offsets, {}, ("y",), wrt, incoming, mode=mode, **rows))


@pytest.mark.parametrize("mode", TRANSFORMED)
def test_a_transformed_call_has_the_results_of_a_plain_one(mode: Mode) -> None:
    plain, transformed = result(convolve, "eager"), result(convolve, mode)
    torch.testing.assert_close(transformed.outputs, plain.outputs)
    if mode == "torch.func.vjp":
        torch.testing.assert_close(transformed.gradients, plain.gradients)
    torch.testing.assert_close(result(convolve, mode, wrt=()).outputs, plain.outputs)


@pytest.mark.parametrize("mode", TRANSFORMED)
def test_a_kernel_that_torch_cannot_transform_raises(mode: Mode) -> None:
    with pytest.raises(KernelFault, match="setup_context") as fault:
        result(lambda x, weight, *, cu_seqlens: convolve(_Doubled.apply(x), weight, cu_seqlens=cu_seqlens), mode)
    assert fault.value.kind == "raised"


def test_a_rule_for_batches_that_takes_the_first_weight_for_all_has_other_results() -> None:
    plain = result(steps.correct_transformed, "eager").outputs["y"]
    assert torch.equal(result(steps.incorrect_vmap, "eager").outputs["y"], plain)
    torch.testing.assert_close(result(steps.correct_transformed, "torch.vmap").outputs["y"], plain)
    assert not torch.allclose(result(steps.incorrect_vmap, "torch.vmap").outputs["y"], plain)


def test_nothing_is_kept_of_a_transformed_call() -> None:
    offsets = torch.tensor([0, 2, 5])
    torch.vmap(lambda x: once("sums", lambda: x + offsets, offsets))(torch.ones(2, 3))
    assert once("sums", lambda: 2 * offsets, offsets).tolist() == [0, 4, 10]
