"""The kernels of the linear family in the interpreter: what they add to those of ssd, which compute them."""

import re
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import kernels, refs
from packproof.base.errors import ArgumentError, LayoutError
from packproof.kernels.linear_attention import INTERPRETED
from tests.kernels.cases import close, normal, offsets, same_bits, scattered, vjp
from tests.sweeps import sweep

CHUNK, SEGMENT = INTERPRETED["chunk"], INTERPRETED["segment"]
OPS = ("linear_attention", "simple_gla", "retention")
TOKENS = ("q", "k", "v", "g")
STATES: dict[str, Any] = {"return_final_states": True}


def sample(
    op: str, lengths: list[int], hk: int = 1, hv: int = 2, k: int = 3, p: int = 2, *, slack: int = 0,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:  # fmt: skip
    t = sum(lengths) + slack
    shapes = {"q": (t, hk, k), "k": (t, hk, k), "v": (t, hv, p)}
    tokens = {name: normal(*shape, dtype=dtype) for name, shape in shapes.items()}
    decays = {"simple_gla": {"g": -normal(t, hv, dtype=dtype).abs()}, "retention": {"decay": -normal(hv).abs()}}
    return tokens | decays.get(op, {}) | {"initial_states": normal(len(lengths), hv, k, p)}


def cotangents(inputs: dict[str, Tensor]) -> list[Tensor]:
    return [normal(*inputs[name].shape, dtype=inputs[name].dtype) for name in ("v", "initial_states") if name in inputs]


def results(op: str, inputs: dict[str, Tensor], dy: list[Tensor], lengths: list[int], **options: Any) -> Any:
    return vjp(getattr(kernels, op), inputs, dy, cu_seqlens=offsets(lengths), **options)


def matches(op: str, lengths: list[int], inputs: dict[str, Tensor], where: str, **options: Any) -> None:
    dy = cotangents(inputs)
    exact = {name: value.double() for name, value in inputs.items()}
    wanted = vjp(getattr(refs, op), exact, [x.double() for x in dy], cu_seqlens=offsets(lengths), **options)
    close(results(op, inputs, dy, lengths, **options), wanted, 2e-6, f"{op} {where}")


@pytest.mark.parametrize("op", OPS)
def test_matches_the_reference(op: str) -> None:
    lengths = [1, 0, 2 * SEGMENT + 1]
    matches(op, lengths, sample(op, lengths, 2, 4), str(lengths), scale=-0.3, **STATES)
    without = {name: value for name, value in sample(op, [CHUNK + 1], k=17).items() if name != "initial_states"}
    matches(op, [CHUNK + 1], without, "without states")


def test_no_token_and_no_sequence() -> None:
    for lengths in ([], [0, 0]):
        matches("retention", lengths, sample("retention", lengths), str(lengths), **STATES)


def test_a_gate_in_fp32_beside_bf16_tokens_is_not_rounded() -> None:
    lengths = [CHUNK + 3, 2]
    inputs = sample("simple_gla", lengths, dtype=torch.bfloat16)
    inputs["g"] = -normal(sum(lengths), 2).abs() / 8
    dy = cotangents(inputs)
    exact = {name: value.double() for name, value in inputs.items()}
    wanted = vjp(refs.simple_gla, exact, [x.double() for x in dy], cu_seqlens=offsets(lengths), **STATES)
    got = results("simple_gla", inputs, dy, lengths, **STATES)
    assert got["g"].dtype == torch.float32
    error = (got["1"] - wanted["1"]).abs().max() / wanted["1"].abs().max()
    assert error < 2**-14, "final states of exact products: a gate rounded to bf16 is off by 2**-9"


def test_gradients_of_final_states_are_not_rounded_to_bf16() -> None:
    lengths = [CHUNK, 2]
    inputs = sample("simple_gla", lengths, dtype=torch.bfloat16)
    inputs["g"] = -normal(sum(lengths), 2).abs() / 8
    del inputs["initial_states"]
    dy = [torch.zeros_like(inputs["v"]), normal(2, 2, 3, 2)]
    exact = {name: value.double() for name, value in inputs.items()}
    wanted = vjp(refs.simple_gla, exact, [x.double() for x in dy], cu_seqlens=offsets(lengths), **STATES)["g"]
    got = results("simple_gla", inputs, dy, lengths, **STATES)["g"]
    assert (got - wanted).abs().max() < 2**-14 * wanted.abs().max()


def test_hard_decays_forget_without_overflow() -> None:
    lengths = [2 * CHUNK + 1]
    inputs = sample("simple_gla", lengths)
    inputs["g"] = inputs["g"] * 200  # exp(-g) overflows within a few tokens
    matches("simple_gla", lengths, inputs, "hard decays", **STATES)


@sweep("gate", sample=[-1e4, -torch.inf], rest=[-1e10, -1e20, -3e38])
def test_a_token_that_forgets_all_takes_nothing_from_later_ones(gate: float) -> None:
    lengths = [CHUNK + 1, SEGMENT + 3]
    inputs = sample("simple_gla", lengths)
    inputs["g"] = inputs["g"] / 8
    inputs["g"][[0, 3, 4, CHUNK + 3, -1]] = gate
    matches("simple_gla", lengths, inputs, f"one token's gate {gate}", **STATES)
    whole = sample("retention", lengths)
    whole["decay"][0] = gate
    matches("retention", lengths, whole, f"decay {gate}", **STATES)


def test_nan_in_a_gate_stays_in_its_sequence_and_after_its_token() -> None:
    lengths = [4, 2 * CHUNK]
    inputs = sample("simple_gla", lengths)
    wanted = results("simple_gla", inputs, cotangents(inputs), lengths, **STATES)["0"]
    inputs["g"][4 + 2] = torch.nan
    got = results("simple_gla", inputs, cotangents(inputs), lengths, **STATES)["0"]
    same_bits(got[:4], wanted[:4], "the sequence before")
    assert got[4 + 2 + CHUNK :].isnan().all()


def test_takes_any_strides_and_ignores_slack() -> None:
    op, lengths, slack = "simple_gla", [CHUNK + 1, 2], 3
    inputs = sample(op, lengths, slack=slack)
    dy = cotangents(inputs)
    wanted = results(op, inputs, dy, lengths, **STATES)
    for name in TOKENS:
        inputs[name][-slack:] = float("nan")
    dy[0][-slack:] = float("inf")
    loose = {name: scattered(value) for name, value in inputs.items()}
    got = results(op, loose, [scattered(value) for value in dy], lengths, **STATES)
    for name, value in wanted.items():
        same_bits(got[name], value, name)
    for name in ("0", *TOKENS):
        assert not got[name][-slack:].any(), name


def test_has_the_bits_of_each_sequence_alone_and_continues_from_its_final_states() -> None:
    lengths = [3, 0, 2 * SEGMENT + 1]
    for dtype in (torch.float32, torch.bfloat16):
        inputs = sample("simple_gla", lengths, dtype=dtype)
        dy = cotangents(inputs)
        packed = results("simple_gla", inputs, dy, lengths, **STATES)
        for j, (start, end) in enumerate(pairwise(offsets(lengths).tolist())):
            rows = dict.fromkeys(("0", *TOKENS), slice(start, end)) | dict.fromkeys(
                ("1", "initial_states"), slice(j, j + 1)
            )
            own = {name: value[rows[name]] for name, value in inputs.items()}
            alone = results("simple_gla", own, [dy[0][rows["0"]], dy[1][rows["1"]]], [end - start], **STATES)
            for name, where in rows.items():
                same_bits(packed[name][where], alone[name], f"{name} of sequence {j}, {dtype}")
        tail = {name: value[start + SEGMENT : end] for name, value in inputs.items() if name in TOKENS}
        head = {name: value[start : start + SEGMENT] for name, value in inputs.items() if name in TOKENS}
        head["initial_states"] = inputs["initial_states"][-1:]
        _, states = kernels.simple_gla(**head, cu_seqlens=offsets([SEGMENT]), **STATES)
        assert states.mT.is_contiguous()  # read again without a copy
        y = kernels.simple_gla(**tail, cu_seqlens=offsets([SEGMENT + 1]), initial_states=states)
        same_bits(y, packed["0"][start + SEGMENT : end], f"continued, {dtype}")


@pytest.mark.proof
@pytest.mark.proof
def test_passes_opcheck() -> None:
    inputs = {name: value.requires_grad_() for name, value in sample("simple_gla", [3, 0, 2]).items()}
    q, k, v, g, states = inputs.values()
    pack, operators = offsets([3, 0, 2]), torch.ops.packproof
    torch.library.opcheck(operators.simple_gla.default, (q, k, v, g, pack, states, 0.5, True))
    torch.library.opcheck(operators.linear_attention.default, (q, k, v, None, pack, None, 0.5, False))


def test_refuses_what_does_not_fit() -> None:
    q, v = normal(3, 2, 3), normal(3, 3, 2)
    with pytest.raises(ArgumentError, match=re.escape("3 value heads (axis hv) cannot be shared evenly by 2")):
        kernels.linear_attention(q, q, v, cu_seqlens=offsets([3]))
    with pytest.raises(LayoutError, match="cu_seqlens ends at 9 but q has 3 tokens"):
        kernels.linear_attention(q, q, normal(3, 2, 2), cu_seqlens=offsets([9]))
    x = normal(3, 1, 3).requires_grad_()
    (gradient,) = torch.autograd.grad(
        kernels.linear_attention(x, x, x, cu_seqlens=offsets([3])).sum(), x, create_graph=True
    )
    with pytest.raises(ArgumentError, match=r"linear_attention: a gradient of its gradient was asked for"):
        torch.autograd.grad(gradient.sum(), x)
