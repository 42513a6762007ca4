"""The kernels of selective_scan in the interpreter."""

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
from packproof.kernels.elementwise import softplus
from packproof.kernels.selective_scan import INTERPRETED, selective_scan
from packproof.kernels.selective_scan_fwd import accurate_exp2
from tests.kernels.cases import LAYOUTS, close, normal, offsets, same_bits, scattered, vjp
from tests.sweeps import sweep

PIECE, SEGMENT = INTERPRETED["chunk"], INTERPRETED["segment"]
OPTIONAL = ("D", "z", "delta_bias", "initial_states")
EACH_PAIR = (0, 7, 11, 13, 14)  # any two of the optional inputs: with both, with either and without
TOKENS = ("u", "delta", "B", "C", "z")
STATES: dict[str, Any] = {"delta_softplus": True, "return_final_states": True}


def sample(
    lengths: list[int], d: int = 2, n: int = 3, groups: tuple[int, int] = (0, 0), *, slack: int = 0,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:  # fmt: skip
    """groups: of B and of C; 0 for an input without the axis."""
    t = sum(lengths) + slack
    tokens = {name: normal(t, d, dtype=dtype) for name in ("u", "delta", "z")}
    tokens |= {name: normal(t, *([g] if g else []), n, dtype=dtype) for name, g in zip("BC", groups, strict=True)}
    tokens["delta"] = tokens["delta"].abs() / 2
    states = {"A": -normal(d, n).abs(), "D": normal(d), "delta_bias": normal(d)}
    return tokens | states | {"initial_states": normal(len(lengths), d, n)}


def cotangents(inputs: dict[str, Tensor], lengths: list[int]) -> list[Tensor]:
    return [normal(*inputs["u"].shape, dtype=inputs["u"].dtype), normal(len(lengths), *inputs["A"].shape)]


def matches(lengths: list[int], inputs: dict[str, Tensor], where: str, **options: Any) -> None:
    dy = cotangents(inputs, lengths)
    exact = {name: value.double() for name, value in inputs.items()}
    wanted = vjp(refs.selective_scan, exact, [x.double() for x in dy], cu_seqlens=offsets(lengths), **options)
    close(vjp(selective_scan, inputs, dy, cu_seqlens=offsets(lengths), **options), wanted, 2e-6, where)


def test_matches_the_reference_on_every_layout() -> None:
    for lengths in (*LAYOUTS, [SEGMENT, 2 * SEGMENT + 1, PIECE], [SEGMENT - 1, 2 * SEGMENT]):
        matches(lengths, sample(lengths), str(lengths), **STATES)


@sweep("optional", sample=EACH_PAIR, rest=range(16))
def test_matches_the_reference_with_any_options(optional: int) -> None:
    """optional: a bit for each optional input."""
    lengths = [2 * PIECE + 1, 1]
    absent = {name for bit, name in enumerate(OPTIONAL) if not optional >> bit & 1}
    inputs = {name: value for name, value in sample(lengths).items() if name not in absent}
    options = {"delta_softplus": optional % 3 == 0, "return_final_states": optional % 2 == 0}
    if "delta_bias" in inputs and not options["delta_softplus"]:
        # with a step below zero the state grows without bound, and so do errors
        inputs["delta_bias"] = inputs["delta_bias"].abs()
    matches(lengths, inputs, f"without {absent}, {options}", **options)


@sweep("rate", sample=[1e4, 3e38], rest=[1e10, 1e20])
def test_rates_that_forget_all_down_to_the_largest_numbers(rate: float) -> None:
    lengths = [SEGMENT + PIECE + 1, 2]
    inputs = sample(lengths)
    inputs["A"] -= 0.5  # with slower ones the sum over tokens has errors of its own
    inputs["A"][0, 1:] = -rate
    matches(lengths, inputs, f"A = -{rate}", **STATES)


def test_a_rate_of_minus_infinity_forgets_all_and_has_no_nan() -> None:
    lengths = [SEGMENT + PIECE + 1, 2]
    inputs = sample(lengths)
    inputs["A"][0, 1] = -torch.inf
    found = vjp(selective_scan, inputs, cotangents(inputs, lengths), cu_seqlens=offsets(lengths), **STATES)
    wanted = refs.selective_scan(**inputs, cu_seqlens=offsets(lengths), **STATES)[0]
    close({"0": found["0"]}, {"0": wanted.double()}, 2e-6, "A = -inf")
    assert all(value.isfinite().all() for value in found.values())


def test_matches_the_reference_in_blocks_of_channels_states_and_groups() -> None:
    lengths = [PIECE + 1, 2]
    for d, n, groups in ((10, 9, (2, 2)), (6, 17, (0, 0)), (6, 2, (0, 3)), (4, 8, (2, 0)), (3, 0, (0, 0))):
        matches(lengths, sample(lengths, d, n, groups), f"d={d} n={n} g={groups}", **STATES)


def test_takes_any_strides_and_ignores_slack() -> None:
    lengths, slack = [SEGMENT + 1, 2], 3
    inputs = sample(lengths, groups=(2, 0), slack=slack)
    dy = cotangents(inputs, lengths)
    wanted = vjp(selective_scan, inputs, dy, cu_seqlens=offsets(lengths), **STATES)
    for name in TOKENS:
        inputs[name][-slack:] = float("nan")
    dy[0][-slack:] = float("inf")
    loose = {name: scattered(value) for name, value in inputs.items()}
    loose_offsets = scattered(offsets(lengths, torch.float64)).nan_to_num(7).long()
    got = vjp(selective_scan, loose, [scattered(value) for value in dy], cu_seqlens=loose_offsets, **STATES)
    for name, value in wanted.items():
        same_bits(got[name], value, name)
    for name in ("0", *TOKENS):
        assert not got[name][-slack:].any(), name


def test_has_the_bits_of_each_sequence_alone() -> None:
    lengths = [3, 0, 2 * SEGMENT + 1, SEGMENT]
    for dtype in (torch.float32, torch.bfloat16):
        inputs = sample(lengths, dtype=dtype)
        dy = cotangents(inputs, lengths)
        packed = vjp(selective_scan, inputs, dy, cu_seqlens=offsets(lengths), **STATES)
        for j, (start, end) in enumerate(pairwise(offsets(lengths).tolist())):
            t, s = slice(start, end), slice(j, j + 1)
            rows = dict.fromkeys(("0", *TOKENS), t) | dict.fromkeys(("1", "initial_states"), s)
            own = {name: value[rows[name]].clone() if name in rows else value for name, value in inputs.items()}
            alone = vjp(selective_scan, own, [dy[0][t], dy[1][s]], cu_seqlens=offsets([end - start]), **STATES)
            for name, where in rows.items():
                same_bits(packed[name][where], alone[name], f"{name} of sequence {j}, {dtype}")


def test_continues_from_its_final_states() -> None:
    lengths = [3 * SEGMENT + 1]
    inputs = sample(lengths)
    dy = cotangents(inputs, lengths)
    whole = vjp(selective_scan, inputs, dy, cu_seqlens=offsets(lengths), **STATES)
    for cut in (0, SEGMENT, 2 * SEGMENT, 3 * SEGMENT):
        head = {name: value[:cut] if name in TOKENS else value for name, value in inputs.items()}
        tail = {name: value[cut:] if name in TOKENS else value for name, value in inputs.items()}
        y, state = selective_scan(**head, cu_seqlens=offsets([cut]), **STATES)
        tail["initial_states"] = state
        rest = vjp(selective_scan, tail, [dy[0][cut:], dy[1]], cu_seqlens=offsets([lengths[0] - cut]), **STATES)
        same_bits(torch.cat([y, rest["0"]]), whole["0"], f"cut at {cut}")
        same_bits(rest["1"], whole["1"], f"final states, cut at {cut}")
        back = [dy[0][:cut], rest["initial_states"]]
        front = vjp(selective_scan, head, back, cu_seqlens=offsets([cut]), **STATES)
        same_bits(front["initial_states"], whole["initial_states"], f"gradient of the initial states, cut at {cut}")


@triton.jit
def _power_kernel(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, accurate_exp2(tl.load(x + at)))


def test_forgets_without_a_drift() -> None:
    x = torch.cat([torch.linspace(-0.2, 0.2, 1024), -torch.logspace(-7, 1, 1024)])
    y = torch.empty_like(x)
    _power_kernel[(1,)](x, y, len(x))
    wanted = torch.exp2(x.double())
    error = (y.double() - wanted) / wanted * 2**24
    near = error[x.abs() < 0.125]
    assert near.abs().max() < 1.1
    assert near.mean().abs() < 0.1
    assert error.abs().max() < 2


@triton.jit
def _softplus_kernel(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, softplus(tl.load(x + at)))


def test_softplus_is_correct_to_its_last_digits() -> None:
    x = torch.cat([torch.linspace(-104, 104, 4096), torch.logspace(-8, 1.3, 2048), -torch.logspace(-8, 1.3, 2048)])
    x[:4] = torch.tensor([0.0, -0.0, float("inf"), float("-inf")])
    y, wanted = torch.empty_like(x), torch.nn.functional.softplus(x.double(), threshold=1e9)
    _softplus_kernel[(1,)](x, y, len(x))
    wanted[:4] = torch.tensor([2.0, 2.0, float("inf"), 1.0]).log()
    finite = wanted.isfinite() & (wanted > 2**-126)
    error = (y.double() - wanted)[finite] / wanted[finite] * 2**24
    assert error.abs().max() < 4
    assert torch.equal(y[~finite & (wanted > 1)].double(), wanted[~finite & (wanted > 1)])
    nothing = torch.full((16,), float("nan"))
    _softplus_kernel[(1,)](nothing, nothing, 16)
    assert nothing.isnan().all()


@pytest.mark.proof
def test_passes_opcheck() -> None:
    lengths = [1, 0, 2]  # too few tokens to keep states for backward: rows without a boundary are unspecified
    inputs = {name: value.requires_grad_() for name, value in sample(lengths, groups=(2, 0)).items()}
    names = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
    for left_out in ((), OPTIONAL):
        given = [None if name in left_out else inputs[name] for name in names]
        states = None if left_out else inputs["initial_states"]
        arguments = (*given, offsets(lengths), states, True, not left_out, True, "auto")
        torch.library.opcheck(torch.ops.packproof.selective_scan.default, arguments)


@pytest.mark.proof
def test_compiles_in_one_graph() -> None:
    inputs = sample([3, 2])
    compiled = torch.compile(selective_scan, backend="aot_eager", fullgraph=True)
    dy = cotangents(inputs, [3, 2])
    wanted = vjp(selective_scan, inputs, dy, cu_seqlens=offsets([3, 2]), **STATES)
    for name, value in vjp(compiled, inputs, dy, cu_seqlens=offsets([3, 2]), **STATES).items():
        same_bits(value, wanted[name], name)


def refused(kind: type[Exception], text: str, **changed: Any) -> None:
    inputs: dict[str, Any] = sample([3]) | {"cu_seqlens": offsets([3])}
    with pytest.raises(kind, match=re.escape(text)):
        selective_scan(**inputs | changed)


def test_refuses_wrong_arguments() -> None:
    refused(ArgumentError, "z has 3 channels (axis d) but u has 2", z=normal(3, 3))
    refused(ArgumentError, "2 channels (axis d) cannot be shared evenly by 3 groups (axis g)", B=normal(3, 3, 3))
    refused(ArgumentError, "A is float64 but float32 or bfloat16", A=normal(2, 3, dtype=torch.float64))
    refused(LayoutError, "cu_seqlens ends at 9 but u has 3 tokens", cu_seqlens=offsets([9]))
    wide = {name: value.double() for name, value in sample([3]).items()}
    refused(ArgumentError, "u is float64 but float32, bfloat16 or float16 was expected", **wide)
    refused(ArgumentError, "packproof.refs.selective_scan computes in float64", **wide)


def test_refuses_a_second_gradient() -> None:
    inputs = {name: value.requires_grad_() for name, value in sample([3]).items()}
    y = selective_scan(**inputs, cu_seqlens=offsets([3]))
    (du,) = torch.autograd.grad(y.sum(), inputs["u"], create_graph=True)
    with pytest.raises(ArgumentError, match=r"selective_scan: .* differentiable once"):
        torch.autograd.grad(du.sum(), inputs["A"])
