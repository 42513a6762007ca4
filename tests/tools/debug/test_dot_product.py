"""The dot-product test detects wrong backward passes at every dtype, passes correct ones, and refuses what it cannot
tell."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from packproof import CheckFailed, dot_product_test, refs
from packproof.base.errors import KernelFault
from packproof.properties.calling.call import VacuousBound
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import draw
from packproof.properties.ops.catalogue import OPS
from tests.sweeps import sweep
from tests.tools.debug.wrong_vjps import WRONG, conv, with_gradients

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def tensors(dtype: torch.dtype, *shapes: tuple[int, ...], seed: int = 1) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def of_conv(dtype: torch.dtype, seed: int = 1) -> list[Tensor]:
    return tensors(dtype, (8, 4), (4, 3), (4,), seed=seed)


def only(dtype: torch.dtype, f: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a kernel that takes one dtype."""

    def narrow(*inputs: Tensor) -> Any:
        if inputs[0].dtype != dtype:
            raise TypeError(f"only {dtype}")
        return f(*inputs)

    return narrow


def test_there_are_thirty_wrong_backward_passes() -> None:
    assert len(WRONG) >= 30


def one_dtype_each(dtypes: Sequence[torch.dtype]) -> list[Any]:
    """Each wrong backward pass in one of the dtypes, which take turns; the rest of them is `make proof`'s."""
    pairs = [(k, name, n, dtype) for k, name in enumerate(WRONG) for n, dtype in enumerate(dtypes)]
    return [
        pytest.param(name, dtype, marks=[] if n == k % len(dtypes) else [pytest.mark.proof], id=f"{name}-{dtype}")
        for k, name, n, dtype in pairs
    ]


@pytest.mark.parametrize(("name", "dtype"), one_dtype_each(DTYPES))
def test_a_wrong_backward_pass_is_detected(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(CheckFailed, match="dot product"):
        dot_product_test(with_gradients(WRONG[name]), *of_conv(dtype))


@pytest.mark.parametrize(("name", "dtype"), one_dtype_each(DTYPES[1:]))
def test_one_that_takes_this_dtype_alone_is_never_passed(name: str, dtype: torch.dtype) -> None:
    with pytest.raises((CheckFailed, VacuousBound)):
        dot_product_test(only(dtype, with_gradients(WRONG[name])), *of_conv(dtype))


def test_one_that_is_wrong_in_bf16_alone_is_detected() -> None:
    def change(g: list[Any], dy: Tensor, x: Tensor, weight: Tensor) -> list[Any]:
        return [a * (1.5 if dy.dtype == torch.bfloat16 else 1) for a in g]

    with pytest.raises(CheckFailed, match=r"gradient of input 0 at .* in bfloat16 but .* in float64"):
        dot_product_test(with_gradients(change), *of_conv(torch.bfloat16))


@sweep("dtype", [torch.float32, torch.bfloat16], DTYPES)
def test_a_correct_one_passes(dtype: torch.dtype) -> None:
    for seed in range(3):
        dot_product_test(conv, *of_conv(dtype, seed), seed=seed)


@sweep("dtype", ["bfloat16"], ["float64", "float32", "float16"])
@pytest.mark.parametrize("op", ["selective_scan", "ssd", "rope"])
def test_references_pass(op: str, dtype: str) -> None:
    sample = draw(OPS[op], Case((3, 0, 2), dtype, tuple(OPS[op].sizes[0].items())))
    names = [name for name in sample.inputs if name not in OPS[op].constants]
    tables = {name: x for name, x in sample.inputs.items() if name not in names}

    def f(*given: Tensor) -> Any:
        rest = {name: x.to(given[0].dtype) for name, x in tables.items()}
        inputs = dict(zip(names, given, strict=True))
        return OPS[op].reference(**inputs, **rest, cu_seqlens=torch.tensor([0, 3, 3, 5]))

    dot_product_test(f, *(sample.inputs[name] for name in names))


FUNCTIONS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "kinks": (torch.relu, [(20, 30)]),
    "norm": (lambda x, w: functional.layer_norm(x, (8,), w), [(6, 8), (8,)]),
    "a scalar": (lambda x: (x.mean() * 3).exp(), [(6, 8)]),
    "fp32 inside": (lambda x: (x.float() * 2).sin().to(x.dtype), [(6, 5)]),
    "fp32 in part": (lambda x, w: x.float().sin().to(x.dtype) * w, [(6, 5), (5,)]),
    "two outputs": (lambda x: (x.sin(), x.cos()), [(4, 3)]),
    "writes into its input": (lambda x: x.mul_(2).sin_(), [(4, 3)]),
    "an input without effect": (lambda x, w: x.sin(), [(4, 3), (2,)]),
    "a scalar input": (lambda x, s: x * s, [(4, 3), ()]),
}


@sweep("dtype", [torch.bfloat16], [torch.float32, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_torch_pass(name: str, dtype: torch.dtype) -> None:
    f, shapes = FUNCTIONS[name]
    dot_product_test(f, *tensors(dtype, *shapes))


def test_one_that_takes_fp32_alone_passes() -> None:
    for seed in range(3):
        dot_product_test(only(torch.float32, conv), *of_conv(torch.float32, seed), seed=seed)


def test_one_that_takes_bf16_alone_is_inconclusive_and_says_so() -> None:
    with pytest.raises(
        VacuousBound, match=r"inconclusive: .* it does not take float64 \(TypeError: only .*give float64"
    ):
        dot_product_test(only(torch.bfloat16, conv), *of_conv(torch.bfloat16))


def test_a_function_that_nothing_changes_is_inconclusive() -> None:
    with pytest.raises(VacuousBound, match="no output changes with any input"):
        dot_product_test(lambda x: torch.ones(3) + 0 * x.sum(), *tensors(torch.float64, (4, 3)))


def test_a_function_that_raises_is_reported_as_such() -> None:
    def raises(x: Tensor) -> Tensor:
        raise IndexError("row 7")

    with pytest.raises(KernelFault, match="IndexError: row 7"):
        dot_product_test(raises, torch.ones(3))


def test_the_message_names_the_input_the_row_and_both_sides() -> None:
    with pytest.raises(CheckFailed) as caught:
        dot_product_test(lambda x, weight: x.detach() * weight + x.sin(), *tensors(torch.float32, (5, 3), (3,)))
    pattern = "dot product: x, row 0: <J v, w> = "
    assert str(caught.value).startswith(pattern)
    assert "but <v, J' w> = " in str(caught.value)
    assert "; the allowed difference is " in str(caught.value)


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float64, 1.0001), (torch.float32, 1.001)])
def test_small_errors_of_the_whole_show(dtype: torch.dtype, factor: float) -> None:
    with pytest.raises(CheckFailed):
        dot_product_test(with_gradients(lambda g, dy, x, w: [factor * a for a in g]), *of_conv(dtype))


def test_a_slice_of_a_pack_is_tested_as_it_is() -> None:
    x, weight = tensors(torch.float32, (40, 3), (3, 2))
    cu = torch.tensor([0, 13, 40])
    dot_product_test(lambda x, weight: refs.causal_conv1d(x, weight, cu_seqlens=cu), x, weight)
