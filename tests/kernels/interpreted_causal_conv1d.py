"""The kernel of causal_conv1d in the interpreter."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.base.errors import ArgumentError, LayoutError
from packproof.kernels.causal_conv1d import causal_conv1d
from tests.kernels.cases import LAYOUTS, close, normal, offsets, same_bits, scattered, vjp
from tests.sweeps import sweep

D = 66  # several blocks of channels, one of them ragged


def sample(
    lengths: list[int], w: int, *, d: int = D, slack: int = 0, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    shapes = {
        "x": (sum(lengths) + slack, d),
        "weight": (d, w),
        "bias": (d,),
        "initial_states": (len(lengths), d, w - 1),
    }
    return {name: normal(*shape, dtype=dtype) for name, shape in shapes.items()}


def cotangents(inputs: dict[str, Tensor], lengths: list[int]) -> list[Tensor]:
    (d, w), dtype = inputs["weight"].shape, inputs["x"].dtype
    return [normal(*inputs["x"].shape, dtype=dtype), normal(len(lengths), d, w - 1, dtype=dtype)]


def test_matches_the_reference() -> None:
    for lengths, w in zip(LAYOUTS, (4, 4, 3, 6, 2, 4), strict=True):
        for options in ({"activation": "silu", "return_final_states": True}, {}):
            inputs = sample(lengths, w, d=3, dtype=torch.float64)
            if not options:
                del inputs["bias"], inputs["initial_states"]
            dy = cotangents(inputs, lengths)
            wanted = vjp(refs.causal_conv1d, inputs, dy, cu_seqlens=offsets(lengths), **options)
            got = vjp(causal_conv1d, inputs, dy, cu_seqlens=offsets(lengths), **options)
            close(got, wanted, 1e-14, f"{lengths} w={w} {options}")


def test_takes_any_strides_and_ignores_slack() -> None:
    lengths, slack = [33, 2], 3
    inputs = sample(lengths, 4, slack=slack)
    dy = cotangents(inputs, lengths)
    options: dict[str, Any] = {"activation": "silu", "return_final_states": True}
    wanted = vjp(causal_conv1d, inputs, dy, cu_seqlens=offsets(lengths), **options)
    inputs["x"][-slack:] = float("nan")
    dy[0][-slack:] = float("inf")
    loose = {name: scattered(value) for name, value in inputs.items()}
    loose_offsets = scattered(offsets(lengths, torch.float64)).nan_to_num(7).long()
    got = vjp(causal_conv1d, loose, [scattered(value) for value in dy], cu_seqlens=loose_offsets, **options)
    for name, value in wanted.items():
        same_bits(got[name], value, name)
    assert not got["0"][-slack:].any()
    assert not got["x"][-slack:].any()


def has_the_bits_of_each_alone(lengths: list[int], inputs: dict[str, Tensor]) -> None:
    dy = cotangents(inputs, lengths)
    options: dict[str, Any] = {"activation": "silu", "return_final_states": True}
    packed = vjp(causal_conv1d, inputs, dy, cu_seqlens=offsets(lengths), **options)
    start = 0
    for j, length in enumerate(lengths):
        t, s = slice(start, start + length), slice(j, j + 1)
        start += length
        own = inputs | {"x": inputs["x"][t].clone(), "initial_states": inputs["initial_states"][s].clone()}
        alone = vjp(causal_conv1d, own, [dy[0][t], dy[1][s]], cu_seqlens=offsets([length]), **options)
        for name, rows in {"0": t, "1": s, "x": t, "initial_states": s}.items():
            same_bits(packed[name][rows], alone[name], f"{name} of sequence {j} of {lengths}, {inputs['x'].dtype}")


def test_has_the_bits_of_each_sequence_alone() -> None:
    lengths = [3, 0, 31, 2]
    for dtype in (torch.float32, torch.bfloat16):
        has_the_bits_of_each_alone(lengths, sample(lengths, 4, dtype=dtype))


def test_keeps_nan_in_its_sequence() -> None:
    lengths = [2, 5, 1]
    inputs = sample(lengths, 4, d=2)
    dy = cotangents(inputs, lengths)
    options: dict[str, Any] = {"cu_seqlens": offsets(lengths), "activation": "silu", "return_final_states": True}
    before = vjp(causal_conv1d, inputs, dy, **options)
    for value, rows in ((inputs["x"], slice(2, 7)), (inputs["initial_states"], 1), (dy[0], slice(2, 7)), (dy[1], 1)):
        value[rows] = float("nan")
    after = vjp(causal_conv1d, inputs, dy, **options)
    for name, rows in {"0": [0, 1, 7], "1": [0, 2], "x": [0, 1, 7], "initial_states": [0, 2]}.items():
        same_bits(after[name][rows], before[name][rows], name)
    assert after["0"][2:7].isnan().all()


def test_continues_from_its_final_states() -> None:
    inputs = sample([7], 4, d=2)
    options: dict[str, Any] = {"activation": "silu", "return_final_states": True}
    y, final = causal_conv1d(**inputs, cu_seqlens=offsets([7]), **options)
    for cut in range(8):
        head, state = causal_conv1d(**inputs | {"x": inputs["x"][:cut]}, cu_seqlens=offsets([cut]), **options)
        rest = inputs | {"x": inputs["x"][cut:], "initial_states": state}
        tail, end = causal_conv1d(**rest, cu_seqlens=offsets([7 - cut]), **options)
        same_bits(torch.cat([head, tail]), y, f"cut at {cut}")
        same_bits(end, final, f"final states, cut at {cut}")


PARAMETERS = ("weight", "bias", "initial_states")


@sweep("dtype, tolerance", sample=[(torch.bfloat16, 1e-2)], rest=[(torch.float16, 2e-3)])
def test_parameters_in_fp32_are_read_and_differentiated_as_such(dtype: torch.dtype, tolerance: float) -> None:
    lengths: list[int] = [3, 0, 33, 1]
    for wide in (("weight", "bias"), ("initial_states",), ("bias",), PARAMETERS):
        inputs = sample(lengths, 4, d=8, dtype=dtype)
        inputs |= {name: normal(*inputs[name].shape) for name in wide}
        dy, options = cotangents(inputs, lengths), {"activation": "silu", "return_final_states": True}
        exact = {name: value.double() for name, value in inputs.items()}
        wanted = vjp(refs.causal_conv1d, exact, [g.double() for g in dy], cu_seqlens=offsets(lengths), **options)
        got = vjp(causal_conv1d, inputs, dy, cu_seqlens=offsets(lengths), **options)
        for name, value in got.items():
            assert value.dtype == (inputs[name].dtype if name in inputs else dtype), name
            most = 2e-6 if name in wide else tolerance
            close({name: value}, {name: wanted[name]}, most, f"{dtype} {wide}")


def test_parameters_in_fp32_have_the_bits_of_each_sequence_alone() -> None:
    lengths = [2, 0, 35, 1]
    inputs = sample(lengths, 4, d=8, dtype=torch.bfloat16)
    has_the_bits_of_each_alone(lengths, inputs | {name: normal(*inputs[name].shape) for name in PARAMETERS[:2]})
    has_the_bits_of_each_alone(lengths, inputs | {name: normal(*inputs[name].shape) for name in PARAMETERS})


@pytest.mark.proof
def test_passes_opcheck() -> None:
    inputs = {name: value.requires_grad_() for name, value in sample([3, 0, 2], 3, d=2).items()}
    optional = (inputs["bias"], offsets([3, 0, 2]), inputs["initial_states"])
    for bias, cu_seqlens, states in (optional, (None, optional[1], None)):
        arguments = (inputs["x"], inputs["weight"], bias, cu_seqlens, states, True, True, "auto")
        torch.library.opcheck(torch.ops.packproof.causal_conv1d.default, arguments)


@pytest.mark.proof
def test_compiles_in_one_graph() -> None:
    inputs = sample([3, 2], 3, d=2)
    compiled = torch.compile(causal_conv1d, backend="aot_eager", fullgraph=True)
    options: dict[str, Any] = {"cu_seqlens": offsets([3, 2]), "activation": "silu"}
    dy = cotangents(inputs, [3, 2])
    wanted = vjp(causal_conv1d, inputs, dy, **options)
    for name, value in vjp(compiled, inputs, dy, **options).items():
        same_bits(value, wanted[name], name)


def refused(kind: type[Exception], text: str, **changed: Any) -> None:
    inputs: dict[str, Any] = sample([3], 3, d=2) | {"cu_seqlens": offsets([3])}
    with pytest.raises(kind, match=re.escape(text)):
        causal_conv1d(**inputs | changed)


def test_refuses_wrong_arguments() -> None:
    refused(ArgumentError, "weight has 3 channels (axis d) but x has 2", weight=normal(3, 3))
    refused(ArgumentError, "activation is 'relu'", activation="relu")
    refused(ArgumentError, "x is None", x=None)
    refused(LayoutError, "cu_seqlens ends at 9 but x has 3 tokens", cu_seqlens=offsets([9]))


def test_refuses_a_second_gradient() -> None:
    inputs = {name: value.requires_grad_() for name, value in sample([3], 3, d=2).items()}
    y = causal_conv1d(**inputs, cu_seqlens=offsets([3]), activation="silu")
    (dx,) = torch.autograd.grad(y.sum(), inputs["x"], create_graph=True)
    with pytest.raises(ArgumentError, match=r"causal_conv1d: .* differentiable once"):
        torch.autograd.grad(dx.sum(), inputs["weight"])
