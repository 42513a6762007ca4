"""The kernels of grouped_mm in the interpreter."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.base.errors import ArgumentError
from packproof.kernels.grouped_mm import grouped_mm
from tests.kernels.cases import LAYOUTS, close, normal, offsets, same_bits, scattered, vjp

D, F = 6, 18  # several tiles of columns, a ragged end of each
WEIGHT = normal(2, D, F)


def tensors(lengths: list[int], slack: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    rows, groups = sum(lengths) + slack, len(lengths)
    shapes = {"x": (rows, D), "weight": (groups, D, F), "bias": (groups, F)}
    return {name: normal(*shape, dtype=dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2**-8), ("float16", 2**-11)])
def test_matches_the_reference(dtype: str, tolerance: float) -> None:
    for lengths in LAYOUTS:
        inputs = tensors(lengths, dtype=getattr(torch, dtype))
        dy, packed = [normal(sum(lengths), F, dtype=getattr(torch, dtype))], {"cu_seqlens": offsets(lengths)}
        wide = {name: value.double() for name, value in inputs.items()}
        expected = vjp(refs.grouped_mm, wide, [dy[0].double()], **packed)
        close(vjp(grouped_mm, inputs, dy, **packed), expected, tolerance, f"{lengths}")


@pytest.mark.parametrize("shape", [(1, 1), (4, 8), (5, 3), (16, 16)])
def test_takes_every_size_without_a_bias(shape: tuple[int, int]) -> None:
    d, f = shape
    inputs, packed = {"x": normal(7, d), "weight": normal(3, d, f)}, {"cu_seqlens": offsets([5, 0, 2])}
    dy = [normal(7, f)]
    close(vjp(grouped_mm, inputs, dy, **packed), vjp(refs.grouped_mm, inputs, dy, **packed), 1e-6, f"{shape}")


def test_takes_any_strides_and_ignores_slack() -> None:
    lengths, slack = [9, 0, 5], 7
    inputs, dy = tensors(lengths, slack), normal(sum(lengths) + slack, F)
    expected = vjp(grouped_mm, inputs, [dy], cu_seqlens=offsets(lengths))
    assert not expected["0"][-slack:].any()
    assert not expected["x"][-slack:].any()
    inputs["x"][-slack:], dy[-slack:] = float("nan"), float("inf")
    transposed = inputs["weight"].transpose(1, 2).contiguous().transpose(1, 2)
    for weight in (transposed, scattered(inputs["weight"])):
        loose = {"x": scattered(inputs["x"]), "weight": weight, "bias": scattered(inputs["bias"])}
        actual = vjp(grouped_mm, loose, [scattered(dy)], cu_seqlens=offsets(lengths, torch.int64))
        for name, value in expected.items():
            same_bits(actual[name], value, name)


def test_a_group_has_the_bits_of_the_group_alone() -> None:
    """Beside NaN in the others' rows, weights and gradients."""
    lengths, dtype = [9, 5, 6], torch.bfloat16
    inputs, dy = tensors(lengths, dtype=dtype), normal(sum(lengths), F, dtype=dtype)
    for name in ("weight", "bias"):
        inputs[name][0] = inputs[name][2] = float("nan")
    inputs["x"][:9] = inputs["x"][14:] = dy[:9] = dy[14:] = float("nan")
    packed = vjp(grouped_mm, inputs, [dy], cu_seqlens=offsets(lengths))
    alone = {"x": inputs["x"][9:14], "weight": inputs["weight"][1:2], "bias": inputs["bias"][1:2]}
    expected = vjp(grouped_mm, alone, [dy[9:14]], cu_seqlens=offsets([5]))
    rows = {"0": slice(9, 14), "x": slice(9, 14), "weight": slice(1, 2), "bias": slice(1, 2)}
    for name, part in rows.items():
        same_bits(packed[name][part], expected[name], name)


@pytest.mark.parametrize("needed", [("x",), ("weight",), ("bias",), ("x", "bias")])
def test_computes_the_gradients_that_are_asked_for(needed: tuple[str, ...]) -> None:
    inputs, packed = tensors([3, 4]), {"cu_seqlens": offsets([3, 4])}
    leaves = {name: value.requires_grad_(name in needed) for name, value in inputs.items()}
    grouped_mm(**leaves, **packed).square().sum().backward()
    partly = {name: leaf.grad for name, leaf in leaves.items()}
    for leaf in leaves.values():
        leaf.grad = None
        leaf.requires_grad_()
    grouped_mm(**leaves, **packed).square().sum().backward()
    for name, gradient in partly.items():
        assert (gradient is not None) == (name in needed)
        if gradient is not None:
            same_bits(gradient, leaves[name].grad, name)


@pytest.mark.proof
def test_passes_opcheck_and_compiles_in_one_graph() -> None:
    inputs, cu_seqlens = tensors([3, 2]), offsets([3, 2])
    leaves = [value.clone().requires_grad_() for value in inputs.values()]
    torch.library.opcheck(torch.ops.packproof.grouped_mm.default, (*leaves, cu_seqlens))
    compiled = torch.compile(grouped_mm, backend="aot_eager", fullgraph=True)
    same_bits(compiled(**inputs, cu_seqlens=cu_seqlens), grouped_mm(**inputs, cu_seqlens=cu_seqlens), "compiled")


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("x is float64 but float32, bfloat16 or float16", {"x": normal(5, D).double(), "weight": WEIGHT.double()}),
        ("weight has 3 sequences (axis s) but cu_seqlens has 2", {"weight": normal(3, D, F)}),
        ("weight has 5 channels (axis d) but x has 6", {"weight": normal(2, 5, F)}),
        ("weight is bfloat16", {"weight": WEIGHT.bfloat16()}),
    ],
)
def test_refuses_wrong_arguments(text: str, changed: dict[str, Any]) -> None:
    inputs = {"x": normal(5, D), "weight": WEIGHT, "cu_seqlens": offsets([3, 2])}
    with pytest.raises(ArgumentError, match=re.escape(text)):
        grouped_mm(**inputs | changed)


def test_is_differentiable_once() -> None:
    inputs = {name: value.requires_grad_() for name, value in tensors([3, 2]).items()}
    y = grouped_mm(**inputs, cu_seqlens=offsets([3, 2]))
    (dx,) = torch.autograd.grad(y.sum(), inputs["x"], create_graph=True)
    with pytest.raises(ArgumentError, match=r"grouped_mm: a gradient of its gradient was asked for"):
        dx.sum().backward()
