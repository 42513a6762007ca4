"""Gradient checks on given tensors pass correct kernels and name the wrong tensors of incorrect ones."""

from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import ArgumentError, CheckFailed, dot_product_test, gradcheck, refs

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


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no input 'colour'"):
        gradcheck(refs.causal_conv1d, {"colour": torch.ones(3)}, cu_seqlens=CU, op="causal_conv1d")
    with pytest.raises(ArgumentError, match="expected axes"):
        gradcheck(refs.causal_conv1d, {"x": torch.ones(3)}, cu_seqlens=CU, op="causal_conv1d")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_dot_product_test_passes_a_correct_vjp(dtype: torch.dtype) -> None:
    def f(x: Tensor, weight: Tensor) -> Any:
        return refs.causal_conv1d(x, weight, activation="silu", cu_seqlens=CU, return_final_states=True)

    for seed in range(5):
        given = tensors(dtype)
        dot_product_test(f, given["x"], given["weight"], seed=seed)


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float64, 1.0001), (torch.float32, 2.0)])
def test_the_dot_product_test_fails_a_wrong_vjp(dtype: torch.dtype, factor: float) -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return dy * x.cos() * factor

    with pytest.raises(CheckFailed, match="dot product"):
        dot_product_test(Wrong.apply, tensors(dtype)["x"])
