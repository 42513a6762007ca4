"""The kernels of ssd in the interpreter."""

import re
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.base.errors import ArgumentError, LayoutError
from packproof.kernels.ssd import INTERPRETED, ssd
from tests.kernels.cases import close, normal, offsets, same_bits, scattered, vjp
from tests.sweeps import sweep

CHUNK, SEGMENT = INTERPRETED["chunk"], INTERPRETED["segment"]
OPTIONAL = ("D", "z", "dt_bias", "initial_states")
TOKENS = ("x", "dt", "B", "C", "z")
STATES: dict[str, Any] = {"dt_softplus": True, "return_final_states": True}


def sample(
    lengths: list[int], h: int = 1, p: int = 2, n: int = 3, g: int = 1, *, slack: int = 0,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:  # fmt: skip
    t = sum(lengths) + slack
    tokens = {name: normal(t, h, p, dtype=dtype) for name in ("x", "z")}
    tokens |= {name: normal(t, g, n, dtype=dtype) for name in "BC"} | {"dt": normal(t, h, dtype=dtype).abs() / 2}
    states = {"A": -normal(h).abs(), "D": normal(h), "dt_bias": normal(h)}
    return tokens | states | {"initial_states": normal(len(lengths), h, p, n)}


def cotangents(inputs: dict[str, Tensor], lengths: list[int]) -> list[Tensor]:
    (_, h, p), n = inputs["x"].shape, inputs["B"].shape[2]
    return [normal(*inputs["x"].shape, dtype=inputs["x"].dtype), normal(len(lengths), h, p, n)]


def matches(lengths: list[int], inputs: dict[str, Tensor], where: str, **options: Any) -> None:
    dy = cotangents(inputs, lengths)
    exact = {name: value.double() for name, value in inputs.items()}
    wanted = vjp(refs.ssd, exact, [x.double() for x in dy], cu_seqlens=offsets(lengths), **options)
    close(vjp(ssd, inputs, dy, cu_seqlens=offsets(lengths), **options), wanted, 2e-6, where)


def test_matches_the_reference_on_layouts() -> None:
    for lengths in ([], [0, 0], [1, 0, 2], [SEGMENT, 1], [2 * SEGMENT + 1, 0, CHUNK]):
        matches(lengths, sample(lengths), str(lengths), **STATES)


@sweep("rate", sample=[1e4, 3e38], rest=[1e10, 1e20])
def test_a_token_that_forgets_all_takes_nothing_from_later_ones(rate: float) -> None:
    lengths = [CHUNK + 1, SEGMENT + 3]
    inputs = sample(lengths, h=2)
    del inputs["dt_bias"]
    inputs["A"][0] = -rate
    inputs["dt"][:, 0] /= min(rate, 1e30)
    inputs["dt"][[0, 3, 4, CHUNK + 3, -1], 0] = 1
    matches(lengths, inputs, f"A = -{rate}", return_final_states=True)


def test_a_rate_of_minus_infinity_forgets_all_and_has_no_nan() -> None:
    lengths = [CHUNK + 1, 3]
    inputs = sample(lengths)
    inputs["A"][0] = -torch.inf
    found = vjp(ssd, inputs, cotangents(inputs, lengths), cu_seqlens=offsets(lengths), **STATES)
    wanted = refs.ssd(**inputs, cu_seqlens=offsets(lengths), **STATES)[0]
    close({"0": found["0"]}, {"0": wanted.double()}, 2e-6, "A = -inf")
    assert all(value.isfinite().all() for value in found.values())


def test_matches_the_reference_where_the_worklist_takes_many_programs() -> None:
    lengths = [1 + k % 2 for k in range(100)]  # more than the square of a block of sequences
    matches(lengths, sample(lengths), str(lengths), **STATES)


def test_matches_the_reference_with_any_options() -> None:
    lengths = [CHUNK + 1, 1]
    for chosen in range(0, 16, 3):
        left_out = {name for bit, name in enumerate(OPTIONAL) if not chosen >> bit & 1}
        inputs = {name: value for name, value in sample(lengths).items() if name not in left_out}
        options = {"dt_softplus": chosen % 2 == 0, "return_final_states": chosen % 4 == 0}
        matches(lengths, inputs, f"without {left_out}, {options}", **options)


def test_matches_the_reference_in_blocks_of_channels_states_heads_and_groups() -> None:
    lengths = [CHUNK + 1]
    for h, p, n, g in ((3, 2, 3, 1), (2, 17, 3, 2), (1, 1, 18, 1)):
        inputs = sample(lengths, h, p, n, g) | {"D": normal(h, p)}
        matches(lengths, inputs, f"h={h} p={p} n={n} g={g}", **STATES)


def test_a_score_against_time_may_overflow() -> None:
    lengths = [2, 1]
    inputs = sample(lengths)
    inputs["C"][0], inputs["B"][1] = 1e25, 1e25  # which reaches no output
    inputs["C"][1] = 0
    matches(lengths, inputs, "C_0 . B_1 overflows")


def test_takes_any_strides_and_ignores_slack() -> None:
    lengths, slack = [CHUNK + 1, 2], 3
    inputs = sample(lengths, slack=slack)
    dy = cotangents(inputs, lengths)
    wanted = vjp(ssd, inputs, dy, cu_seqlens=offsets(lengths), **STATES)
    for name in TOKENS:
        inputs[name][-slack:] = float("nan")
    dy[0][-slack:] = float("inf")
    loose = {name: scattered(value) for name, value in inputs.items()}
    got = vjp(ssd, loose, [scattered(value) for value in dy], cu_seqlens=offsets(lengths).long(), **STATES)
    for name, value in wanted.items():
        same_bits(got[name], value, name)
    for name in ("0", *TOKENS):
        assert not got[name][-slack:].any(), name


def test_has_the_bits_of_each_sequence_alone() -> None:
    lengths = [3, 0, SEGMENT + 1, CHUNK, CHUNK // 2]
    for dtype in (torch.float32, torch.bfloat16):
        inputs = sample(lengths, dtype=dtype)
        dy = cotangents(inputs, lengths)
        packed = vjp(ssd, inputs, dy, cu_seqlens=offsets(lengths), **STATES)
        for j, (start, end) in enumerate(pairwise(offsets(lengths).tolist())):
            t, s = slice(start, end), slice(j, j + 1)
            rows = dict.fromkeys(("0", *TOKENS), t) | dict.fromkeys(("1", "initial_states"), s)
            own = {name: value[rows[name]].clone() if name in rows else value for name, value in inputs.items()}
            alone = vjp(ssd, own, [dy[0][t], dy[1][s]], cu_seqlens=offsets([end - start]), **STATES)
            for name, where in rows.items():
                same_bits(packed[name][where], alone[name], f"{name} of sequence {j}, {dtype}")


@sweep("dtype", sample=[torch.bfloat16], rest=[torch.float32])
def test_continues_from_its_final_states(dtype: torch.dtype) -> None:
    lengths = [2 * SEGMENT + 1]
    inputs = sample(lengths, dtype=dtype)
    dy = cotangents(inputs, lengths)
    whole = vjp(ssd, inputs, dy, cu_seqlens=offsets(lengths), **STATES)
    for cut in (0, SEGMENT, 2 * SEGMENT):
        head = {name: value[:cut] if name in TOKENS else value for name, value in inputs.items()}
        tail = {name: value[cut:] if name in TOKENS else value for name, value in inputs.items()}
        y, tail["initial_states"] = ssd(**head, cu_seqlens=offsets([cut]), **STATES)
        rest = vjp(ssd, tail, [dy[0][cut:], dy[1]], cu_seqlens=offsets([lengths[0] - cut]), **STATES)
        same_bits(torch.cat([y, rest["0"]]), whole["0"], f"cut at {cut}")
        same_bits(rest["1"], whole["1"], f"final states, cut at {cut}")
        front = vjp(ssd, head, [dy[0][:cut], rest["initial_states"]], cu_seqlens=offsets([cut]), **STATES)
        same_bits(front["initial_states"], whole["initial_states"], f"gradient of the initial states, cut at {cut}")
        for name in TOKENS:
            same_bits(torch.cat([front[name], rest[name]]), whole[name], f"gradient of {name}, cut at {cut}")


@pytest.mark.proof
def test_passes_opcheck() -> None:
    lengths = [3, 0, 2]
    inputs = {name: value.requires_grad_() for name, value in sample(lengths).items()}
    names = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias")
    for left_out in ((), OPTIONAL):
        given = [None if name in left_out else inputs[name] for name in names]
        states = None if left_out else inputs["initial_states"]
        torch.library.opcheck(torch.ops.packproof.ssd.default, (*given, offsets(lengths), states, True, not left_out))


def refused(kind: type[Exception], text: str, **changed: Any) -> None:
    inputs: dict[str, Any] = sample([3], h=2) | {"cu_seqlens": offsets([3])}
    with pytest.raises(kind, match=re.escape(text)):
        ssd(**inputs | changed)


def test_refuses_wrong_arguments() -> None:
    refused(ArgumentError, "z has 3 channels per head (axis p) but x has 2", z=normal(3, 2, 3))
    refused(ArgumentError, "2 heads (axis h) cannot be shared evenly by 3 groups", B=normal(3, 3, 3), C=normal(3, 3, 3))
    refused(LayoutError, "cu_seqlens ends at 9 but x has 3 tokens", cu_seqlens=offsets([9]))
    wide = {name: value.double() for name, value in sample([3], h=2).items()}
    refused(ArgumentError, "x is float64 but float32, bfloat16 or float16 was expected", **wide)
    many = {name: normal(3, 1, 257) for name in "BC"} | {"initial_states": normal(1, 2, 2, 257)}
    refused(ArgumentError, "B has 257 states (axis n) but at most 256 were expected", **many)
