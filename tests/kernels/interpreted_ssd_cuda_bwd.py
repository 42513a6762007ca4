"""ssd_bwd.cu: its threads run on the CPU, beside the kernels in Triton that take what is short."""

import shutil
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.kernels import ssd_tiles
from tests.kernels.cases import normal, offsets, same_bits, scattered, vjp
from tests.kernels.emulator import compile as emulator
from tests.sweeps import sweep

CHUNK, SEGMENT = 64, 128
TOKENS = ("x", "dt", "B", "C")
OF_D = (None, "head", "channel")
Inputs = dict[str, Tensor]
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

ssd_tiles.SEGMENT_INTERPRETED = SEGMENT
ssd_tiles.CHUNK_INTERPRETED = CHUNK  # of both languages
emulator.install()

from packproof.kernels.ssd import backward_over_ranks, forward_over_ranks, ssd  # noqa: E402  (of the sizes above)


def sample(lengths: list[int], h: int = 2, n: int = 64, g: int = 1, *, slack: int = 0) -> Inputs:
    t = sum(lengths) + slack
    tokens = {name: normal(t, g, n, dtype=torch.bfloat16) for name in "BC"}
    tokens |= {"x": normal(t, h, 64, dtype=torch.bfloat16), "dt": (normal(t, h).abs() / 4).bfloat16()}
    rates = torch.tensor([0.02, 1.0]).repeat(h)[:h]  # of heads that remember several chunks, and that forget in one
    return tokens | {"A": -(normal(h).abs() + 0.2) * rates, "D": normal(h), "dt_bias": normal(h) / 4}


def error(got: Tensor, exact: Tensor) -> float:
    """The L2 norm of the error, relative."""
    return ((got.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()


def gradients(
    inputs: dict[str, Tensor], cotangents: list[Tensor], impl: str = "cuda", **call: Any
) -> dict[str, Tensor]:
    """By name; `cotangents` of y and, if there are two, of the final states."""
    return vjp(ssd, inputs, cotangents, return_final_states=len(cotangents) > 1, impl=impl, **call)


def matches(
    lengths: list[int], inputs: dict[str, Tensor], where: str = "", *, final: bool = False, **call: Any
) -> None:
    """Gradients have at most the errors of Triton's, and are zero in slack."""
    (_, h, _), n, slack = inputs["x"].shape, inputs["B"].shape[2], sum(lengths)
    dy = [normal(*inputs["x"].shape, dtype=torch.bfloat16), *[normal(len(lengths), h, 64, n)] * final]
    call = {"cu_seqlens": offsets(lengths), "dt_softplus": True, **call}
    found, triton = (gradients(inputs, dy, impl, **call) for impl in ("cuda", "triton"))
    wide = {name: value.double() for name, value in inputs.items()} | {"A": inputs["A"].double().clamp(min=-1e30)}
    exact = vjp(refs.ssd, wide, [value.double() for value in dy], return_final_states=final, **call)
    for name in inputs:
        of_sums = name in {"A", "D", "dt_bias"}  # over all tokens, so that a single rounding may count
        allowed = (1.5 if of_sums else 1.03) * error(triton[name], exact[name]) + 1e-5
        got = error(found[name], exact[name])
        assert got <= allowed, f"{name}, {lengths} {where}: {got}, allowed {allowed}"
        if name in TOKENS:
            assert not found[name][slack:].any(), f"slack of {name}, {lengths} {where}"


def test_matches_the_reference_on_layouts() -> None:
    for lengths in ([0, 0], [CHUNK], [CHUNK + 1, 0, 3], [2 * SEGMENT + 1, 0, 17, 65, 33]):
        matches(lengths, sample(lengths, slack=3))


def test_matches_the_reference_on_short_sequences() -> None:
    """A kernel of their own takes up to 32 tokens, in blocks of 8 and 16."""
    lengths = [1, 2, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33]
    matches(lengths, sample(lengths))


HEADS = [(2, 64, 1), (5, 128, 1), (9, 64, 3), (70, 64, 1)]


@sweep("h, n, g", sample=[(5, 128, 1), (9, 64, 3)], rest=HEADS)
def test_matches_the_reference_in_heads_states_and_groups(h: int, n: int, g: int) -> None:
    lengths = [SEGMENT + 30, 20]
    matches(lengths, sample(lengths, h, n, g), f"h={h} n={n} g={g}")


@sweep("D, softplus", sample=[("channel", True), (None, False)], rest=[(D, s) for D in OF_D for s in (False, True)])
def test_matches_the_reference_with_any_options(D: str | None, softplus: bool) -> None:
    lengths = [SEGMENT + 3, 0, 20]
    inputs = sample(lengths)
    del inputs["D"], inputs["dt_bias"]
    inputs |= {} if D is None else {"D": normal(2) if D == "head" else normal(2, 64), "dt_bias": normal(2).abs() / 4}
    matches(lengths, inputs, f"{D} {softplus}", dt_softplus=softplus)


@sweep("initial, final", sample=[(True, True)], rest=[(True, False), (False, True)])
def test_matches_the_reference_where_states_enter_and_leave(initial: bool, final: bool) -> None:
    lengths = [2 * SEGMENT + 6, 0, 3, CHUNK, SEGMENT]
    inputs = sample(lengths) | ({"initial_states": normal(5, 2, 64, 64)} if initial else {})
    matches(lengths, inputs, f"{initial} {final}", final=final)


@sweep("rate", sample=[torch.inf], rest=[1e4, 3e38])
def test_a_token_that_forgets_all_takes_nothing_from_later_ones(rate: float) -> None:
    lengths = [SEGMENT + 3, 20]
    inputs = sample(lengths)
    inputs["A"][0] = -rate
    matches(lengths, inputs, str(rate))


def test_states_may_grow_and_steps_be_negative() -> None:
    lengths = [CHUNK + 40, 20]
    inputs = sample(lengths)
    del inputs["dt_bias"]
    inputs["A"][:] = torch.tensor([0.05, -0.05])
    inputs["dt"][::3] *= -1
    matches(lengths, inputs, dt_softplus=False)


def test_a_gradient_of_a_score_against_time_may_overflow() -> None:
    lengths = [2, 70]
    inputs = sample(lengths)
    inputs["C"][[0, 2]], inputs["B"][[1, 3]] = 1e25, 1e25  # which reaches no output
    inputs["C"][[1, *range(3, 72)]] = 0
    found = gradients(inputs, [normal(72, 2, 64, dtype=torch.bfloat16)], cu_seqlens=offsets(lengths), dt_softplus=True)
    assert all(value.isfinite().all() for value in found.values())


def test_takes_any_strides_and_ignores_slack() -> None:
    lengths, slack = [SEGMENT + 2, 20], 7
    inputs = sample(lengths, slack=slack)
    dy = normal(*inputs["x"].shape, dtype=torch.bfloat16)
    call: dict[str, Any] = {"cu_seqlens": offsets(lengths), "dt_softplus": True}
    wanted = gradients(inputs, [dy], **call)
    for value in (dy, *(inputs[name] for name in TOKENS)):
        value[-slack:] = float("nan")
    loose = {name: scattered(value) for name, value in inputs.items()}
    found = gradients(loose, [scattered(dy)], **call | {"cu_seqlens": offsets(lengths).long()})
    for name in inputs:
        same_bits(found[name], wanted[name], name)


def test_reads_no_memory_that_nothing_wrote() -> None:
    lengths = [CHUNK + 10, 5, 0, 40]
    inputs = sample(lengths)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        dy = normal(sum(lengths), 2, 64, dtype=torch.bfloat16)
        found = gradients(inputs, [dy], cu_seqlens=offsets(lengths), dt_softplus=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(value.isfinite().all() for value in found.values())


FEW, ALL = (3, SEGMENT + 6, 0, 33), (3, 0, 2 * SEGMENT + 1, CHUNK, CHUNK + 41)


@sweep("states, lengths", sample=[(True, FEW)], rest=[(True, ALL), (False, ALL)])
def test_has_the_bits_of_each_sequence_alone_whatever_the_others_hold(states: bool, lengths: tuple[int, ...]) -> None:
    entering, leaving = normal(2, len(lengths), 2, 64, 64)
    inputs = sample([*lengths]) | ({"initial_states": entering} if states else {})
    dy = normal(*inputs["x"].shape, dtype=torch.bfloat16)
    of_states = [leaving] * states
    for j, (start, end) in enumerate(pairwise(offsets(lengths).tolist())):
        rows = dict.fromkeys(TOKENS, slice(start, end)) | {"initial_states": slice(j, j + 1)}
        piece = {name: value[rows[name]].clone() if name in rows else value for name, value in inputs.items()}
        alone = gradients(
            piece, [dy[start:end], *(value[j : j + 1] for value in of_states)], cu_seqlens=offsets([end - start]),
            dt_softplus=True,
        )  # fmt: skip
        others = {name: value.clone() for name, value in inputs.items()} | {"dy": dy.clone()}
        for name in (*TOKENS, "dy"):
            others[name][:start] = others[name][end:] = float("nan")
        packed = gradients(others, [others.pop("dy"), *of_states], cu_seqlens=offsets(lengths), dt_softplus=True)
        for name in rows.keys() & inputs.keys():
            same_bits(packed[name][rows[name]], alone[name], f"{name} of sequence {j}")


def test_ranks_have_the_bits_of_one_where_a_segment_ends() -> None:
    length, cut = 2 * SEGMENT + 5, 2 * SEGMENT
    inputs, dy = sample([length]), normal(length, 2, 64, dtype=torch.bfloat16)
    whole = gradients(inputs, [dy], cu_seqlens=offsets([length]), dt_softplus=True)
    pieces = [
        {name: value[rows] if name in TOKENS else value for name, value in inputs.items()} | {"z": None}
        for rows in (slice(cut), slice(cut, length))
    ]
    calls = [{**piece, "cu_seqlens": offsets([len(piece["x"])]), "softplus": True} for piece in pieces]
    forward = [forward_over_ranks(**call, leaves=leaves) for call, leaves in zip(calls, (True, False), strict=True)]
    leaving, _ = (next(half) for half in forward)
    assert leaving is not None
    entering, ends = (None, leaving[0]), []
    for half, state in zip(forward, entering, strict=True):
        with pytest.raises(StopIteration) as end:
            half.send(state)
        ends.append(end.value.value[1])
    backward = [
        backward_over_ranks(dy[rows], **call, initial_states=state, ends=saved)
        for rows, call, state, saved in zip((slice(cut), slice(cut, length)), calls, entering, ends, strict=True)
    ]
    _, of_entering = (next(half) for half in backward)
    found = []
    for half, of_leaving in zip(backward, (of_entering, None), strict=True):
        with pytest.raises(StopIteration) as end:
            half.send(of_leaving)
        found.append(dict(zip(("x", "dt", "A", "B", "C"), end.value.value, strict=False)))
    for name in TOKENS:
        same_bits(torch.cat([half[name] for half in found]), whole[name], f"{name} on two ranks")
