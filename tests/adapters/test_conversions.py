"""Conversions outside of a kernel: differentiable, exact in slack, and paid for in the budget where they round."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof.adapters import L2Norm, Scaled, adapt, base2_log, natural_log
from packproof.adapters.conversions import convert
from packproof.base.errors import ArgumentError, UsageError
from packproof.properties.declarations.declaration import describe_kernel
from packproof.properties.declarations.promises import Promises
from packproof.refs import causal_conv1d
from tests.adapters.conventions import CONVENTIONS
from tests.adapters.gated import GATED, Kernel
from tests.adapters.test_conventions import report


def test_gates_to_base_2_and_back() -> None:
    x = torch.randn(50, dtype=torch.float64)
    torch.testing.assert_close(torch.exp2(base2_log(x)), x.exp())
    torch.testing.assert_close(natural_log(base2_log(x)), x)


@pytest.mark.parametrize(
    "function", [base2_log, natural_log, L2Norm(), L2Norm(1e-2), Scaled(0.3), Scaled("width ** 0.5")]
)
def test_every_conversion_is_differentiable(function: Any) -> None:
    assert torch.autograd.gradcheck(function, torch.randn(4, 3, dtype=torch.float64, requires_grad=True))


def third(x: Tensor) -> Tensor:
    return x * (1 / 3)


def tripled(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor) -> Any:
    y = causal_conv1d(3 * x.float(), weight.float(), None if bias is None else bias.float(), cu_seqlens=cu_seqlens)
    assert isinstance(y, Tensor)
    return y.to(x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_a_conversion_rounds_is_in_the_budget(dtype: str, tmp_path: Path) -> None:
    adapter = adapt(tripled, op="causal_conv1d", converted={"x": third})
    assert describe_kernel(adapter)["declared"]["promises"]["compute"] == "operand"
    assert report(adapter, tmp_path, dtype) == ""


def test_without_that_term_a_correct_kernel_would_fail(tmp_path: Path) -> None:
    adapter = adapt(tripled, op="causal_conv1d", converted={"x": third}, dtypes=["float32"], promises=Promises())
    assert describe_kernel(adapter)["declared"]["promises"]["compute"] is None
    assert "x the budget" in report(adapter, tmp_path, "bfloat16")


@pytest.mark.parametrize("name", ["gates to base 2", "norm outside", "sigmoid outside"])
def test_16_bit_tokens(name: str, tmp_path: Path) -> None:
    declared = CONVENTIONS[name].correct
    adapter = adapt(declared.target, op=GATED, converted=declared.converted, slack=False)
    assert report(adapter, tmp_path, "bfloat16") == ""


def test_a_promise_that_excludes_the_rounding_is_refused() -> None:
    with pytest.raises(UsageError, match="promises has compute='fp32', but x is converted and then rounded"):
        adapt(tripled, op="causal_conv1d", converted={"x": third}, promises=Promises(compute="fp32"))
    fixed = adapt(Kernel(decay=torch.exp2), op=GATED, converted={"g": base2_log}, promises=Promises(compute="fp32"))
    assert describe_kernel(fixed)["declared"]["promises"]["compute"] == "fp32"


def test_slack_is_not_converted_and_gets_no_gradient_from_a_conversion() -> None:
    def kernel(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        assert x[2:].isnan().all()
        assert x[:2].isfinite().all()
        return torch.where(torch.arange(len(x))[:, None] < cu_seqlens[-1], x, 0)

    adapter = adapt(kernel, op="causal_conv1d", converted={"x": torch.logit, "y": torch.sigmoid})
    x = torch.tensor([[0.25], [0.5], [torch.nan]], requires_grad=True)
    y = adapter(x, torch.ones(1, 1), cu_seqlens=torch.tensor([0, 2]))
    torch.testing.assert_close(y.detach(), torch.tensor([[0.25], [0.5], [0.0]]))
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[1.0], [1.0], [0.0]]))


def test_a_conversion_may_ask_for_other_arguments_and_offers_their_options() -> None:
    offered = describe_kernel(CONVENTIONS["an option folded in"].correct)["parameters"]
    assert offered == ["q", "k", "v", "causal", "softmax_scale", "cu_seqlens"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[0], r"converted 'x': <lambda> returned shape \(3,\), expected a tensor of \(5, 3\)"),
        (lambda x: 1.0, r"converted 'x': <lambda> returned a float, expected a tensor of \(5, 3\)"),
        (lambda x: x.detach(), r"converted 'x': <lambda> returned a detached tensor, expected torch functions of x"),
    ],
    ids=["shape", "type", "detached"],
)
def test_what_a_conversion_returns_is_checked(function: Any, message: str) -> None:
    adapter = adapt(tripled, op="causal_conv1d", converted={"x": function})
    with pytest.raises(ArgumentError, match=message):
        adapter(torch.ones(5, 3, requires_grad=True), torch.ones(3, 2), cu_seqlens=torch.tensor([0, 5]))


def test_integers_have_the_dtype_that_a_conversion_gives_them() -> None:
    """Some kernels take slots, or offsets, in one of two integer dtypes alone."""
    slots = torch.tensor([3, -1, 2**40])
    narrow = convert(Tensor.int, slots[:2], {}, None, "")
    assert (narrow.dtype, narrow.tolist()) == (torch.int32, [3, -1])
    assert convert(lambda x: x + 1, slots, {}, None, "").tolist() == [4, 0, 2**40 + 1]
    assert convert(Tensor.double, torch.ones(2, dtype=torch.bfloat16), {}, None, "").dtype == torch.bfloat16
