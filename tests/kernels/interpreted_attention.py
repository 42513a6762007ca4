"""The kernels of attention in the interpreter."""

import re
from itertools import pairwise
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof import refs
from packproof.base.errors import ArgumentError, LayoutError
from packproof.kernels.attention import INTERPRETED, attention
from packproof.kernels.elementwise import tanh
from tests.kernels.cases import close, normal, offsets, same_bits, scattered, vjp

BLOCK = INTERPRETED["chunk"]
LENGTHS = [3, 0, 2 * BLOCK + 1, 1, BLOCK]  # some for the kernels of short sequences
KEYS = [5, 2, BLOCK, 0, 2 * BLOCK + 3]
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"causal": True},
    {"window_size": (5, 0)},
    {"window_size": (BLOCK + 2, 3), "softcap": 1.5},
    {"causal": True, "softmax_scale": -0.4},
    {"softmax_scale": 0.0, "window_size": (0, 0)},
)


def sample(
    lengths: list[int], keys: list[int] | None = None, hq: int = 2, hk: int = 1, k: int = 4, v: int = 3, *,
    slack: int = 0, dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:  # fmt: skip
    t, u = sum(lengths) + slack, sum(lengths if keys is None else keys) + slack
    shapes = {"q": (t, hq, k), "k": (u, hk, k), "v": (u, hk, v), "sinks": (hq,)}
    return {name: normal(*shape, dtype=dtype) for name, shape in shapes.items()}


def cotangents(inputs: dict[str, Tensor]) -> list[Tensor]:
    t, hq, _ = inputs["q"].shape
    return [normal(t, hq, inputs["v"].shape[2], dtype=inputs["q"].dtype), normal(t, hq)]


def matches(lengths: list[int], inputs: dict[str, Tensor], tolerance: float, **options: Any) -> None:
    dy = cotangents(inputs)
    exact = {name: value.double() for name, value in inputs.items()}
    options |= {"cu_seqlens": offsets(lengths), "return_lse": True}
    wanted = vjp(refs.attention, exact, [x.double() for x in dy], **options)
    got = vjp(attention, inputs, dy, **options)
    nothing = wanted["1"].isinf()
    same_bits(got["1"].isinf(), nothing, "rows that see nothing")
    for found in (got, wanted):
        found["1"] = found["1"].masked_fill(nothing, 0)
    close(got, wanted, tolerance, f"{lengths} {inputs['q'].dtype} {options}")


def test_matches_the_reference_with_any_options() -> None:
    for options in OPTIONS:
        matches(LENGTHS, sample(LENGTHS), 2e-6, **options)


def test_lse_alone_is_differentiated() -> None:
    """The gradient of y is None in the backward pass: nothing says on which device."""
    inputs, options = sample(LENGTHS), {"cu_seqlens": offsets(LENGTHS), "causal": True, "return_lse": True}
    _, dlse = cotangents(inputs)
    got = vjp(lambda **arguments: attention(**arguments)[1], inputs, [dlse], **options)
    exact = {name: value.double() for name, value in inputs.items()}
    wanted = vjp(lambda **arguments: refs.attention(**arguments)[1], exact, [dlse.double()], **options)
    close(got, wanted, 2e-6, "lse alone")


def test_matches_the_reference_with_keys_of_their_own_and_without_sinks() -> None:
    for options in OPTIONS[:4]:
        inputs = sample(LENGTHS, KEYS)
        del inputs["sinks"]
        matches(LENGTHS, inputs, 2e-6, cu_seqlens_k=offsets(KEYS), **options)


def test_matches_the_reference_in_every_dtype_and_head() -> None:
    lengths = [BLOCK + 1, 2]
    every_heads = ((6, 2, 8, 8), (1, 1, 17, 5), (2, 2, 3, 20))
    every_dtype = ((torch.float32, 2e-6), (torch.bfloat16, 1e-2), (torch.float16, 1.5e-3))
    for heads, (dtype, tolerance) in zip(every_heads, every_dtype, strict=True):
        matches(lengths, sample(lengths, None, *heads, dtype=dtype), tolerance, causal=True)


def test_small_weights_of_fp16_are_not_lost() -> None:
    inputs = {name: x.half() for name, x in sample([BLOCK + 4], None, 1, 1).items()} | {"sinks": torch.zeros(1).half()}
    inputs["q"].fill_(4)
    inputs["k"].fill_(-1)  # with a scale of 1 the sink takes all but e⁻¹⁶ of the softmax, where fp16 has three bits
    inputs["v"] = inputs["v"].abs() * 1000
    matches([BLOCK + 4], inputs, 2e-3, softmax_scale=1.0)


def test_where_a_query_sees_few_keys_only_the_value_is_rounded() -> None:
    lengths = [2 * BLOCK, 4, BLOCK - 3]
    inputs = sample(lengths, dtype=torch.bfloat16)
    del inputs["sinks"]
    for causal in (True, False):
        options: dict[str, Any] = {"cu_seqlens": offsets(lengths), "causal": causal}
        wanted = refs.attention(**{name: x.double() for name, x in inputs.items()}, **options).bfloat16()
        other = (attention(**inputs, **options) != wanted).float()
        if causal:  # the second block of the first sequence sees more
            assert other[BLOCK : 2 * BLOCK].mean() > 0.05
            other[BLOCK : 2 * BLOCK] = 0
        assert other.mean() <= 0.01, f"{other.mean():.1%} of the values are not those next to the exact ones, {causal=}"


def test_takes_any_strides_and_ignores_slack() -> None:
    slack, options = 3, {"cu_seqlens_k": offsets(KEYS), "window_size": (7, 2), "return_lse": True}
    inputs = sample(LENGTHS, KEYS, slack=slack)
    dy = cotangents(inputs)
    wanted = vjp(attention, inputs, dy, cu_seqlens=offsets(LENGTHS), **options)
    for name in ("q", "k", "v"):
        inputs[name][-slack:] = float("nan")
    for x in dy:
        x[-slack:] = float("inf")
    loose = {name: scattered(value) for name, value in inputs.items()}
    got = vjp(attention, loose, [scattered(x) for x in dy], cu_seqlens=offsets(LENGTHS).long(), **options)
    for name, value in wanted.items():
        same_bits(got[name], value, name)
        assert name == "sinks" or not got[name][-slack:].any(), name


def test_has_the_bits_of_each_sequence_alone() -> None:
    rows = {"q": LENGTHS, "0": LENGTHS, "1": LENGTHS, "k": KEYS, "v": KEYS}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        inputs = sample(LENGTHS, KEYS, dtype=dtype)
        dy, options = cotangents(inputs), {"causal": True, "return_lse": True}
        packed = vjp(attention, inputs, dy, cu_seqlens=offsets(LENGTHS), cu_seqlens_k=offsets(KEYS), **options)
        places = {name: [slice(*ends) for ends in pairwise(offsets(n).tolist())] for name, n in rows.items()}
        for j, (n, m) in enumerate(zip(LENGTHS, KEYS, strict=True)):
            own = {name: x[places[name][j]].clone() if name in rows else x for name, x in inputs.items()}
            own_dy = [x[places["q"][j]] for x in dy]
            alone = vjp(attention, own, own_dy, cu_seqlens=offsets([n]), cu_seqlens_k=offsets([m]), **options)
            for name, where in places.items():
                same_bits(packed[name][where[j]], alone[name], f"{name} of sequence {j}, {dtype}")


def test_what_another_sequence_holds_reaches_none() -> None:
    lengths = [2 * BLOCK + 3, 2, BLOCK + 1]  # the first has tiles that are read whole
    inputs, cu = sample(lengths), offsets(lengths)
    del inputs["sinks"]
    dy = cotangents(inputs)
    before = vjp(attention, inputs, dy, cu_seqlens=cu, causal=True)
    for poison in (float("nan"), float("inf"), 1e30):
        for first, end in pairwise(cu.tolist()):
            bad = {name: x.clone() for name, x in inputs.items()}
            for x in bad.values():
                x[first:end] = poison
            after = vjp(attention, bad, dy, cu_seqlens=cu, causal=True)
            others = [i for i in range(sum(lengths)) if not first <= i < end]
            for name, x in before.items():
                same_bits(after[name][others], x[others], f"{name} beside {poison} from {first}")


def test_a_pack_may_be_empty_and_a_sequence_too() -> None:
    for lengths in ([], [0, 0], [0, 1, 0]):
        matches(lengths, sample(lengths), 2e-6, causal=True)


@pytest.mark.proof
@pytest.mark.proof
def test_passes_opcheck_and_compiles_in_one_graph() -> None:
    lengths = [3, 0, BLOCK + 1]
    inputs = {name: x.requires_grad_() for name, x in sample(lengths).items()}
    for sinks, keys in ((inputs["sinks"], None), (None, offsets(lengths))):
        arguments = (inputs["q"], inputs["k"], inputs["v"], sinks, offsets(lengths), keys, -1, 0, 0.5, 0.0, True)
        torch.library.opcheck(torch.ops.packproof.attention.default, arguments)
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    wanted = attention(**inputs, cu_seqlens=offsets(lengths), causal=True)
    same_bits(compiled(**inputs, cu_seqlens=offsets(lengths), causal=True), wanted, "compiled")


def test_has_no_second_derivative() -> None:
    inputs = {name: x.requires_grad_() for name, x in sample([2]).items()}
    y = attention(**inputs, cu_seqlens=offsets([2]))
    (dq,) = torch.autograd.grad(y.sum(), inputs["q"], create_graph=True)
    with pytest.raises(ArgumentError, match="the kernel is differentiable once"):
        dq.sum().backward()


def refused(kind: type[Exception], text: str, **changed: Any) -> None:
    inputs: dict[str, Any] = sample([3]) | {"cu_seqlens": offsets([3])}
    with pytest.raises(kind, match=re.escape(text)):
        attention(**inputs | changed)


def test_refuses_wrong_arguments() -> None:
    refused(ArgumentError, "k has 6 channels per head (axis k) but q has 4", k=normal(3, 1, 6))
    refused(
        ArgumentError,
        "2 query heads (axis hq) cannot be shared evenly by 3 key heads",
        k=normal(3, 3, 4),
        v=normal(3, 3, 3),
    )
    refused(LayoutError, "cu_seqlens ends at 9 but q has 3 tokens", cu_seqlens=offsets([9]))
    refused(ArgumentError, "q has 257 channels per head", q=normal(3, 2, 257), k=normal(3, 1, 257))
    refused(ArgumentError, "q is float64", **{name: x.double() for name, x in sample([3]).items()})


def test_tanh_is_exact_to_two_units_in_the_last_place() -> None:
    """Near 0, where 1 - 2 / (e^2x + 1) cancels, and where its two formulas meet."""
    x = torch.cat([torch.logspace(-30, 1.2, 4000), torch.linspace(0.55, 0.65, 4000)])
    x = torch.cat([x, -x, torch.zeros(1)])
    y = torch.empty_like(x)
    _tanh_kernel[(1,)](x, y, len(x), BLOCK=triton.next_power_of_2(len(x)))
    want = x.double().tanh()
    assert ((y.double() - want).abs() <= 2 * 2**-23 * want.abs()).all()


@triton.jit
def _tanh_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tanh(tl.load(x + i, mask=i < n)), mask=i < n)
