"""ssd.cu: its threads run on the CPU. interpreted_ssd_cuda_bwd.py has the backward pass."""

import shutil
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.kernels import ssd_tiles
from tests.kernels.cases import normal, offsets, same_bits, scattered
from tests.kernels.emulator import compile as emulator
from tests.sweeps import sweep

CHUNK, SEGMENT = 64, 128
TOKENS = ("x", "dt", "B", "C", "z")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

ssd_tiles.SEGMENT_INTERPRETED = SEGMENT
emulator.install()

from packproof.kernels.ssd import forward_over_ranks, ssd  # noqa: E402  (its segments have the size above)


def sample(lengths: list[int], h: int = 2, n: int = 64, g: int = 1, *, slack: int = 0) -> dict[str, Tensor]:
    t = sum(lengths) + slack
    tokens = {name: normal(t, g, n, dtype=torch.bfloat16) for name in "BC"}
    tokens |= {"x": normal(t, h, 64, dtype=torch.bfloat16), "dt": (normal(t, h).abs() / 4).bfloat16()}
    rates = torch.tensor([0.02, 1.0]).repeat(h)[:h]  # of heads that remember several chunks, and that forget in one
    return tokens | {"A": -(normal(h).abs() + 0.2) * rates, "D": normal(h), "dt_bias": normal(h) / 4}


def native(**arguments: Any) -> Any:
    return ssd(**arguments, impl="cuda")


def error(got: Tensor, exact: Tensor) -> float:
    """The L2 norm of the error, relative."""
    return ((got.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()


def matches(lengths: list[int], inputs: dict[str, Tensor], where: str = "", **options: Any) -> None:
    """y has the error of one rounding to bf16, with final states and without; they have that of a few in fp32."""
    wide = {name: value.double() for name, value in inputs.items()}
    call: dict[str, Any] = {"cu_seqlens": offsets(lengths), **options}
    y, final_states = refs.ssd(**wide, **call, return_final_states=True)
    of_rounding = error(y.bfloat16(), y)
    got, got_states = native(**inputs, **call, return_final_states=True)
    for form, values in (("with final states", got), ("without", native(**inputs, **call))):
        assert error(values, y) <= 1.02 * of_rounding, f"y {form}, {lengths} {where}: {error(values, y)}"
        assert not values[sum(lengths) :].any(), f"slack {form}, {lengths} {where}"
    assert error(got_states, final_states) <= 2e-5, f"states, {lengths} {where}: {error(got_states, final_states)}"


def test_matches_the_reference_on_layouts() -> None:
    for lengths in ([], [0, 0], [1], [CHUNK], [CHUNK + 1, 0, 3], [0, SEGMENT, 0], [2 * SEGMENT + 1, 63, 0, 17, 65, 33]):
        matches(lengths, sample(lengths), dt_softplus=True)


def test_matches_the_reference_on_sequences_of_one_chunk() -> None:
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64]
    matches(lengths, sample(lengths), dt_softplus=True)


def test_matches_the_reference_where_states_enter() -> None:
    lengths = [2 * SEGMENT + 5, 0, 3, CHUNK, 70]
    matches(lengths, sample(lengths) | {"initial_states": normal(5, 2, 64, 64)}, dt_softplus=True)


HEADS = [(2, 64, 1), (5, 128, 1), (9, 64, 3), (70, 64, 1)]


@sweep("h, n, g", sample=[(9, 64, 3)], rest=HEADS)
def test_matches_the_reference_in_heads_states_and_groups(h: int, n: int, g: int) -> None:
    lengths = [CHUNK + 3, 5]
    matches(lengths, sample(lengths, h, n, g), f"h={h} n={n} g={g}", dt_softplus=True)


FORMS = [(D, z, softplus) for D in (None, "head", "channel") for z in (False, True) for softplus in (False, True)]


@sweep("D, z, softplus", sample=[("channel", True, True), (None, False, False)], rest=FORMS)
def test_matches_the_reference_with_any_options(D: str | None, z: bool, softplus: bool) -> None:
    lengths = [SEGMENT + CHUNK + 3, 0, 20]
    inputs = sample(lengths)
    del inputs["D"], inputs["dt_bias"]
    inputs |= {} if D is None else {"D": normal(2) if D == "head" else normal(2, 64), "dt_bias": normal(2).abs() / 4}
    inputs |= {"z": normal(*inputs["x"].shape, dtype=torch.bfloat16)} if z else {}
    matches(lengths, inputs, f"{D} {z} {softplus}", dt_softplus=softplus)


def test_matches_the_reference_where_sequences_are_many() -> None:
    lengths = [int(k % 9 == 4) for k in range(300)]  # more than a block has threads
    matches(lengths, sample(lengths), dt_softplus=True)


@sweep("rate", sample=[1e4, torch.inf], rest=[3e38])
def test_a_token_that_forgets_all_takes_nothing_from_later_ones(rate: float) -> None:
    lengths = [CHUNK + 3, 20]
    inputs = sample(lengths)
    inputs["A"][0] = -rate
    wide = {name: value.double() for name, value in inputs.items()} | {"A": inputs["A"].double().clamp(min=-1e30)}
    y = refs.ssd(**wide, cu_seqlens=offsets(lengths), dt_softplus=True)
    assert error(native(**inputs, cu_seqlens=offsets(lengths), dt_softplus=True), y) <= 1.02 * error(y.bfloat16(), y)


def test_states_may_grow_and_steps_be_negative() -> None:
    lengths = [CHUNK + 9, 20]
    inputs = sample(lengths)
    del inputs["dt_bias"]
    inputs["A"][:] = torch.tensor([0.05, -0.05])
    inputs["dt"][::3] *= -1
    matches(lengths, inputs)


def test_a_score_against_time_may_overflow() -> None:
    lengths = [2, 70]
    inputs = sample(lengths)
    inputs["C"][[0, 2]], inputs["B"][[1, 3]] = 1e25, 1e25  # which reaches no output
    inputs["C"][[1, *range(3, 72)]] = 0
    matches(lengths, inputs, dt_softplus=True)


def test_takes_any_strides_and_ignores_slack() -> None:
    lengths, slack = [SEGMENT + 2, 20], 7
    inputs = sample(lengths, slack=slack)
    options: dict[str, Any] = {"dt_softplus": True, "return_final_states": True}
    wanted = native(**inputs, cu_seqlens=offsets(lengths), **options)
    for name in TOKENS[:-1]:
        inputs[name][-slack:] = float("nan")
    loose = {name: scattered(value) for name, value in inputs.items()}
    for got, value in zip(native(**loose, cu_seqlens=offsets(lengths).long(), **options), wanted, strict=True):
        same_bits(got, value, "strided")
    assert not wanted[0][-slack:].any()


def pieces(inputs: dict[str, Tensor], j: int, start: int, end: int) -> dict[str, Tensor]:
    """The inputs of tokens of sequence j."""
    rows = dict.fromkeys(TOKENS, slice(start, end)) | {"initial_states": slice(j, j + 1)}
    return {name: value[rows[name]].clone() if name in rows else value for name, value in inputs.items()}


FEW, ALL = (3, SEGMENT + 6, 0, 33), (3, 0, 2 * SEGMENT + 1, CHUNK, CHUNK + 1)


@sweep("entered, lengths", sample=[(False, FEW)], rest=[(False, ALL), (True, ALL)])
def test_has_the_bits_of_each_sequence_alone_whatever_the_others_hold(entered: bool, lengths: tuple[int, ...]) -> None:
    inputs = sample([*lengths]) | ({"initial_states": normal(len(lengths), 2, 64, 64)} if entered else {})
    for finals in (False, True):
        options: dict[str, Any] = {"dt_softplus": True, "return_final_states": finals}
        for j, (start, end) in enumerate(pairwise(offsets(lengths).tolist())):
            alone = native(**pieces(inputs, j, start, end), cu_seqlens=offsets([end - start]), **options)
            others = {name: value.clone() for name, value in inputs.items()}
            for name in TOKENS[:-1]:
                others[name][:start] = others[name][end:] = float("nan")
            packed = native(**others, cu_seqlens=offsets(lengths), **options)
            same_bits((packed[0] if finals else packed)[start:end], alone[0] if finals else alone, f"sequence {j}")
            if finals:
                same_bits(packed[1][j : j + 1], alone[1], f"state of sequence {j}")


def test_continues_from_its_final_states() -> None:
    length = 2 * SEGMENT + 5
    inputs = sample([length])
    options: dict[str, Any] = {"dt_softplus": True, "return_final_states": True}
    y, final_states = native(**inputs, cu_seqlens=offsets([length]), **options)
    for cut in (SEGMENT, 2 * SEGMENT):
        head, states = native(**pieces(inputs, 0, 0, cut), cu_seqlens=offsets([cut]), **options)
        rest = pieces(inputs, 0, cut, length) | {"initial_states": states}
        tail, end = native(**rest, cu_seqlens=offsets([length - cut]), **options)
        same_bits(torch.cat([head, tail]), y, f"cut at {cut}")
        same_bits(end, final_states, f"final states, cut at {cut}")


def test_ranks_have_the_bits_of_one_where_a_segment_ends() -> None:
    length, cut = 2 * SEGMENT + 5, 2 * SEGMENT
    inputs = sample([length])
    y, exact = (
        native(**inputs, cu_seqlens=offsets([length]), dt_softplus=True),
        refs.ssd(**pieces(inputs, 0, 0, cut), cu_seqlens=offsets([cut]), dt_softplus=True, return_final_states=True),
    )
    halves = [
        forward_over_ranks(**part, z=None, cu_seqlens=offsets([len(part["x"])]), softplus=True, leaves=leaves)
        for part, leaves in ((pieces(inputs, 0, 0, cut), True), (pieces(inputs, 0, cut, length), False))
    ]
    leaving, nothing = map(next, halves)
    assert leaving is not None
    assert nothing is None
    assert error(leaving[0], exact[1].double()) <= 2e-5
    steps = torch.nn.functional.softplus(inputs["dt"][:cut].double() + inputs["dt_bias"])
    torch.testing.assert_close(leaving[1].double(), (steps.sum(0) * inputs["A"]).exp(), rtol=1e-4, atol=1e-37)
    rows = []
    for half, entering in zip(halves, (None, leaving[0]), strict=True):
        with pytest.raises(StopIteration) as end:
            half.send(entering)
        rows.append(end.value.value[0])
    same_bits(torch.cat(rows), y, "on two ranks")


@sweep("size", sample=[1e-6, 1e6], rest=[1e-9, 1.0, 1e9])
def test_matches_the_reference_whatever_the_size_of_tokens(size: float) -> None:
    """A state enters outputs in units that follow it, in fp16."""
    lengths = [SEGMENT + CHUNK + 3, 70]
    inputs = sample(lengths) | {"initial_states": normal(2, 2, 64, 64) * torch.tensor([1e-8, 1e8]).view(2, 1, 1, 1)}
    for name in "xBC":
        decades = torch.rand(len(inputs["x"]), 1, 1, dtype=torch.float64) * 6 - 3
        inputs[name] = (inputs[name].double() * size * 10**decades).bfloat16()
    matches(lengths, inputs, f"of size {size}", dt_softplus=True)
