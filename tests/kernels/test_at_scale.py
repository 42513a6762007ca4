"""Kernels at sizes that only a GPU reaches: accuracy, and packs of extreme shape."""

import random
from dataclasses import replace
from importlib import import_module

import pytest
import torch

from packproof import refs
from packproof.harness.check.targets.builtin_kernels import BUILTIN_KERNELS
from packproof.kernels import ssd_launch, ssd_tiles
from packproof.properties.ops.catalogue import OPS
from tests.kernels.at_scale import Kernel, outside_the_budget, relative_errors, sample_of, tail_outside_the_budget

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NAMES = ("selective_scan", "ssd", "simple_gla")
LENGTHS = (0, 1, 5, 64, 0, 100, 1, 257, 3, 130, 256, 2, 0)
MODELS = {
    "selective_scan": {"d": 256, "n": 16, "g": 1},
    "ssd": {"h": 8, "p": 64, "n": 128, "g": 1},
    "simple_gla": {"hk": 2, "hv": 8, "k": 128, "p": 64},
    "attention": {"hq": 4, "hk": 2, "k": 128, "v": 128},
}
NARROW = {
    "selective_scan": {"d": 8, "n": 16, "g": 1},
    "ssd": {"h": 1, "p": 16, "n": 16, "g": 1},
    "simple_gla": {"hk": 1, "hv": 1, "k": 16, "p": 16},
    "attention": {"hq": 2, "hk": 1, "k": 16, "v": 16},
}
WIDE = {
    "selective_scan": {"d": 4096, "n": 16, "g": 1},
    "ssd": {"h": 64, "p": 64, "n": 128, "g": 1},
    "simple_gla": {"hk": 1, "hv": 64, "k": 128, "p": 64},
}
# relative L2 errors of outputs and gradients; rounding to bf16 once is 1.7e-3
ALLOWED = {
    ("selective_scan", "float32"): (3e-7, 2e-6),
    ("ssd", "float32"): (1e-6, 2e-6),
    ("selective_scan", "bfloat16"): (1.8e-3, 2.6e-3),
    ("ssd", "bfloat16"): (1.8e-3, 2.6e-3),
    ("simple_gla", "float32"): (1e-6, 2e-6),
    ("simple_gla", "bfloat16"): (1.8e-3, 2.6e-3),
    ("attention", "float32"): (1e-6, 2e-6),
    ("attention", "float16"): (2.5e-4, 3.4e-4),
    ("attention", "bfloat16"): (1.9e-3, 2.7e-3),
}
# forms of the references that take fewer steps than one for each token; here they agree with them to 1e-13
BY_PARTS = {
    "selective_scan": refs.selective_scan_associative,
    "ssd": refs.ssd_chunked,
    "simple_gla": refs.simple_gla_chunked,
}
BYTES_FOR_2_31_ELEMENTS = 70e9


def kernel(name: str) -> Kernel:
    found: Kernel = getattr(import_module(BUILTIN_KERNELS[name].module), name)
    return found


@pytest.mark.parametrize(("name", "dtype"), ALLOWED)
def test_accuracy_of_outputs_and_gradients(name: str, dtype: str) -> None:
    lengths = (*LENGTHS, 2000) if name == "attention" else LENGTHS  # the references of the others take a step a token
    outputs, gradients = relative_errors(
        OPS[name], kernel(name), sample_of(OPS[name], lengths, MODELS[name], dtype), "cuda"
    )
    assert outputs <= ALLOWED[name, dtype][0]
    assert gradients <= ALLOWED[name, dtype][1]


@pytest.mark.parametrize("name", MODELS)
def test_a_hundred_thousand_sequences_of_a_token_or_two(name: str) -> None:
    rng = random.Random(0)
    lengths = tuple(rng.choice((1, 2)) for _ in range(100_000))
    sample = sample_of(OPS[name], lengths, NARROW[name], "float32")
    chosen = [0, *sorted(rng.sample(range(1, 99_999), 30)), 99_999]
    assert outside_the_budget(kernel(name), sample, "cuda", chosen) == []


@pytest.mark.parametrize("name", NAMES)
def test_one_sequence_of_65536_tokens(name: str) -> None:
    op = replace(OPS[name], reference=BY_PARTS[name])
    sample = sample_of(op, (65_536,), NARROW[name], "float32")
    assert outside_the_budget(kernel(name), sample, "cuda") == []


@pytest.mark.parametrize("name", NAMES)
def test_past_more_than_2_31_elements(name: str) -> None:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < BYTES_FOR_2_31_ELEMENTS:
        pytest.skip(f"needs {BYTES_FOR_2_31_ELEMENTS / 1e9:.0f} GB of free GPU memory, there are {free / 1e9:.0f}")
    assert tail_outside_the_budget(OPS[name], kernel(name), 2**31 // 4096 + 257, 100, WIDE[name], "cuda") == []


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
)
def test_tiles_of_32_channels_in_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(tokens: torch.dtype, architecture: str) -> ssd_tiles.Tiles:
        usual = ssd_tiles.tiles(tokens, architecture)
        return replace(usual, dx_p=32, intra_p=32, inter_p=32, whole_p=0)

    monkeypatch.setattr(ssd_launch, "tiles", narrow)
    sample = sample_of(OPS["ssd"], LENGTHS, MODELS["ssd"], "bfloat16")
    _, gradients = relative_errors(OPS["ssd"], kernel("ssd_triton"), sample, "cuda")
    assert gradients <= ALLOWED["ssd", "bfloat16"][1]
