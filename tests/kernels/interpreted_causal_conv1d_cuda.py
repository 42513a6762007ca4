"""causal_conv1d.cu: the tests of the Triton kernels, and its own.

Its threads run on the CPU; the smaller kernels are interpreted.
"""

import random
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.kernels import causal_conv1d_launch
from packproof.kernels.causal_conv1d import causal_conv1d
from tests.kernels import interpreted_causal_conv1d
from tests.kernels.cases import ABOUT_THE_OP, LAYOUTS, borrowed_tests, close, offsets, same_bits, scattered, vjp
from tests.kernels.emulator import compile as emulator
from tests.kernels.emulator.compile import LAUNCHED_MACROS
from tests.kernels.interpreted_causal_conv1d import cotangents, has_the_bits_of_each_alone, sample
from tests.sweeps import sweep

WINDOW = 8
STATES: dict[str, Any] = {"activation": "silu", "return_final_states": True}
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

causal_conv1d_launch._THREADS = 32
causal_conv1d_launch._WINDOWS = {"FORWARD": WINDOW, "BACKWARD": WINDOW}
causal_conv1d_launch._CONSTANTS |= {"FORWARD_ROWS": 4, "BACKWARD_ROWS": 4}
emulator.install()
globals().update(
    borrowed_tests(
        interpreted_causal_conv1d,
        except_for=[
            "test_matches_the_reference",  # in float64, which CUDA C++ does not compute
            "test_has_the_bits_of_each_sequence_alone",  # as test_does_not_depend_on_the_pack
            *ABOUT_THE_OP,
        ],
        proofs=[
            "test_parameters_in_fp32_are_read_and_differentiated_as_such",
            "test_keeps_nan_in_its_sequence",
            "test_refuses_a_second_gradient",
        ],
    )
)


def native(**arguments: Any) -> Any:
    return causal_conv1d(**arguments, impl="cuda")


def matches(lengths: list[int], inputs: dict[str, Tensor], tolerance: float = 2e-6, **options: Any) -> None:
    dy = cotangents(inputs, lengths)
    exact = {name: value.double() for name, value in inputs.items()}
    wanted = vjp(refs.causal_conv1d, exact, [x.double() for x in dy], cu_seqlens=offsets(lengths), **options)
    close(vjp(native, inputs, dy, cu_seqlens=offsets(lengths), **options), wanted, tolerance, str(lengths))


def some_lengths(seed: int) -> list[int]:
    drawn = random.Random(seed)
    return drawn.choices(range(2 * WINDOW + 4), k=drawn.randrange(1, 9))


def test_matches_the_reference_on_every_layout() -> None:
    edges = ([WINDOW], [WINDOW, 0], [WINDOW - 1, 0, 2 * WINDOW, 1], [WINDOW + 1, WINDOW - 2, 0, 0], [5 * WINDOW + 3])
    for lengths in (*LAYOUTS, *edges, *map(some_lengths, range(12))):
        matches(lengths, sample(lengths, 4, d=8), **STATES)


@pytest.mark.proof
def test_matches_the_reference_with_any_options() -> None:
    lengths = [WINDOW + 1, 0, 1, 2]
    for chosen in range(16):
        inputs = sample(lengths, 4, d=4)
        for bit, name in enumerate(("bias", "initial_states")):
            if not chosen >> bit & 1:
                del inputs[name]
        options = {"activation": "silu" if chosen & 4 else None, "return_final_states": bool(chosen & 8)}
        matches(lengths, inputs, **options)


@sweep("seed", sample=[7], rest=[0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11])  # each form takes g++ half a second
def test_short_sequences_have_the_bits_of_long_walks(seed: int) -> None:
    few = causal_conv1d_launch._FEW_TOKENS
    drawn = random.Random(seed)
    lengths = drawn.choices(range(6), k=drawn.randrange(4, 20))
    inputs = sample(lengths, 2 + seed % 3, d=8, slack=seed % 2, dtype=(torch.float32, torch.bfloat16)[seed % 2])
    del inputs["initial_states"]
    dy = [cotangents(inputs, lengths)[0]]
    results = []
    for causal_conv1d_launch._FEW_TOKENS, short in ((0, "0"), (100, "1")):
        results.append(vjp(native, inputs, dy, cu_seqlens=offsets(lengths), activation="silu"))
        assert LAUNCHED_MACROS[-1]["SHORT"] == short
    causal_conv1d_launch._FEW_TOKENS = few
    for name, value in results[0].items():
        if name not in ("weight", "bias"):  # summed over other windows
            same_bits(results[1][name], value, f"{lengths} {name}")


@sweep("w", sample=[4], rest=[2, 3])
def test_short_sequences_match_the_reference(w: int) -> None:
    lengths = [1, 0, 2, 1, 1, 3, 0, 0, 1, 1, 2, 1, 1, 1, 5, 1, 0, 1, 1]
    inputs = sample(lengths, w, d=8)
    del inputs["initial_states"]
    dy = cotangents(inputs, lengths)[0]
    exact = {name: value.double() for name, value in inputs.items()}
    wanted = vjp(refs.causal_conv1d, exact, [dy.double()], cu_seqlens=offsets(lengths), activation="silu")
    got = vjp(native, inputs, [dy], cu_seqlens=offsets(lengths), activation="silu")
    assert LAUNCHED_MACROS[-1]["SHORT"] == "1"
    close(got, wanted, 2e-6, f"w={w}")


CHANNELS = (1, 6, 33, 136)


@sweep("w, d", sample=[(2, 136), (3, 6), (4, 1)], rest=[(w, d) for w in (2, 3, 4) for d in CHANNELS])
def test_matches_the_reference_with_any_width_and_number_of_channels(w: int, d: int) -> None:
    lengths = some_lengths(100 * w + d)
    matches(lengths, sample(lengths, w, d=d), **STATES)


@sweep("d, widest", sample=[(272, 8), (7, 1)], rest=[(12, 4), (6, 2)])
def test_matches_the_reference_in_bf16(d: int, widest: int) -> None:
    matches_in(torch.bfloat16, 1e-2, d, widest)


@pytest.mark.proof
@sweep("d, widest", sample=[(12, 4)], rest=[(272, 8), (6, 2), (7, 1)])
def test_matches_the_reference_in_fp16(d: int, widest: int) -> None:
    matches_in(torch.float16, 2e-3, d, widest)


def matches_in(dtype: torch.dtype, tolerance: float, d: int, widest: int) -> None:
    lengths = some_lengths(d)
    matches(lengths, sample(lengths, 4, d=d, dtype=dtype), tolerance, **STATES)
    assert LAUNCHED_MACROS[-1]["BACKWARD_CHANNELS"] == str(widest)


@pytest.mark.proof
@sweep("d, w", sample=[(7, 3)], rest=[(272, 4), (6, 2)])
def test_reads_a_filter_in_fp32_beside_tokens_of_16_bits(d: int, w: int) -> None:
    lengths = some_lengths(d)
    inputs = sample(lengths, w, d=d, dtype=torch.bfloat16)
    inputs |= {name: sample(lengths, w, d=d)[name] for name in ("weight", "bias")}
    dy = cotangents(inputs, lengths)
    got = vjp(native, inputs, dy, cu_seqlens=offsets(lengths), **STATES)
    assert (LAUNCHED_MACROS[-1]["FILTER"], LAUNCHED_MACROS[-1]["TOKEN"]) == ("FP32", "BF16")
    exact = {name: value.double() for name, value in inputs.items()}
    wanted = vjp(refs.causal_conv1d, exact, [x.double() for x in dy], cu_seqlens=offsets(lengths), **STATES)
    for name, value in got.items():
        most = 2e-6 if name in ("weight", "bias") else 1e-2
        close({name: value}, {name: wanted[name]}, most, f"d={d} w={w}")


@pytest.mark.proof
@sweep("dtype", sample=[torch.bfloat16], rest=[torch.float32])
def test_takes_any_strides_and_ignores_slack(dtype: torch.dtype) -> None:
    lengths, slack = [2 * WINDOW + 1, 2], WINDOW + 3
    inputs = sample(lengths, 4, d=8, slack=slack, dtype=dtype)
    dy = cotangents(inputs, lengths)
    wanted = vjp(native, inputs, dy, cu_seqlens=offsets(lengths), **STATES)
    inputs["x"][-slack:] = float("nan")
    dy[0][-slack:] = float("inf")
    loose = {name: scattered(value) for name, value in inputs.items()}
    columns = {name: torch.cat([value] * 2, -1)[..., 8:] if name == "x" else value for name, value in inputs.items()}
    shifted = columns | {"x": torch.cat([inputs["x"][:, :3], inputs["x"]], -1)[:, 3:]}
    for strided in (loose, columns, shifted):
        got = vjp(native, strided, [scattered(value) for value in dy], cu_seqlens=offsets(lengths), **STATES)
        for name, value in wanted.items():
            same_bits(got[name], value, name)
    for name in ("0", "x"):
        same_bits(wanted[name][-slack:], torch.zeros_like(wanted[name][-slack:]), name)


def test_does_not_depend_on_the_pack() -> None:
    for seed in range(4):
        lengths = some_lengths(seed)
        for dtype in (torch.float32, torch.bfloat16):
            before = len(LAUNCHED_MACROS)
            has_the_bits_of_each_alone(lengths, sample(lengths, 4, d=8, dtype=dtype))
            assert len(LAUNCHED_MACROS) > before, "not run in CUDA C++"


def test_computes_only_the_gradients_that_are_needed() -> None:
    lengths = [WINDOW + 1, 3]
    inputs = sample(lengths, 4, d=8)
    weight = inputs["weight"].clone().requires_grad_()
    y = native(**inputs | {"weight": weight}, cu_seqlens=offsets(lengths))
    (found,) = torch.autograd.grad(y.sum(), weight)
    wanted = vjp(native, inputs, [torch.ones_like(y)], cu_seqlens=offsets(lengths))
    same_bits(found, wanted["weight"], "weight")
