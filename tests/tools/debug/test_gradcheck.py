"""Gradient checks on given tensors pass correct kernels and name the wrong tensors of incorrect ones."""

from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import ArgumentError, CheckFailed, Promises, gradcheck, kernel, refs

CU = torch.tensor([0, 3, 3, 8])


def tensors(dtype: torch.dtype) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = {"x": (9, 4), "weight": (4, 3), "bias": (4,), "initial_states": (3, 4, 2)}
    return {n: torch.randn(s, generator=g, dtype=torch.float64).to(dtype) for n, s in shapes.items()}


def no_bias_gradient(x: Tensor, weight: Tensor, bias: Tensor, **options: Any) -> Any:
    return refs.causal_conv1d(x, weight, bias.detach(), **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_reference_passes_at_every_dtype(dtype: torch.dtype) -> None:
    options = {"activation": "silu", "return_final_states": True}
    gradcheck(refs.causal_conv1d, tensors(dtype), cu_seqlens=CU, op="causal_conv1d", options=options)


def test_a_missing_gradient_is_named() -> None:
    with pytest.raises(CheckFailed, match="gradient of bias: shared, element") as caught:
        gradcheck(no_bias_gradient, tensors(torch.float32), cu_seqlens=CU, op="causal_conv1d")
    assert "gradient of x" not in str(caught.value)


def test_given_cotangents_are_used() -> None:
    zero = {"y": torch.zeros(9, 4)}
    gradcheck(no_bias_gradient, tensors(torch.float32), cu_seqlens=CU, op="causal_conv1d", cotangents=zero)


def test_the_order_of_the_inputs_does_not_matter() -> None:
    given = tensors(torch.float32)
    gradcheck(refs.causal_conv1d, dict(reversed(given.items())), cu_seqlens=CU, op="causal_conv1d")


def test_slack_may_hold_anything() -> None:
    given = tensors(torch.float32)
    given["x"][8:] = float("nan")
    gradcheck(refs.causal_conv1d, given, cu_seqlens=CU, op="causal_conv1d")


def test_what_the_kernel_declares_is_taken() -> None:
    @kernel(op="causal_conv1d", promises=Promises(grid="token"))
    def conv(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Any:
        return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)

    given = tensors(torch.float32)
    gradcheck(conv, {"x": given["x"], "weight": given["weight"]}, cu_seqlens=CU)


def test_the_kernel_is_not_called_with_inputs_that_do_not_fit() -> None:
    called = []

    def conv(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Any:
        called.append(x)

    given = tensors(torch.float32)
    with pytest.raises(ArgumentError, match="weight has 3 channels"):
        gradcheck(conv, {"x": given["x"], "weight": given["weight"][:3]}, cu_seqlens=CU, op="causal_conv1d")
    assert not called
