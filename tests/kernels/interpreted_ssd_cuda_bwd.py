"""ssd_bwd.cu: its threads run on the CPU, beside the kernels in Triton that take what is short."""

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.kernels import ssd_tiles
from tests.kernels.cases import normal, offsets, same_bits, vjp
from tests.kernels.emulator import compile as emulator

CHUNK, SEGMENT = 64, 128
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

ssd_tiles.SEGMENT_INTERPRETED = SEGMENT
ssd_tiles.CHUNK_INTERPRETED = CHUNK  # of both languages
emulator.install()

from packproof.kernels.ssd import ssd  # noqa: E402  (its chunks and segments have the sizes above)


def sample(lengths: list[int], h: int = 2, n: int = 64, g: int = 1, *, slack: int = 0) -> dict[str, Tensor]:
    t = sum(lengths) + slack
    tokens = {name: normal(t, g, n, dtype=torch.bfloat16) for name in "BC"}
    tokens |= {"x": normal(t, h, 64, dtype=torch.bfloat16), "dt": (normal(t, h).abs() / 4).bfloat16()}
    rates = torch.tensor([0.02, 1.0]).repeat(h)[:h]  # of heads that remember several chunks, and that forget in one
    return tokens | {"A": -(normal(h).abs() + 0.2) * rates, "D": normal(h), "dt_bias": normal(h) / 4}


def error(got: Tensor, exact: Tensor) -> float:
    """The L2 norm of the error, relative."""
    return ((got.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()


def matches(lengths: list[int], inputs: dict[str, Tensor], where: str = "", **options: Any) -> None:
    """Gradients have at most the errors of Triton's."""
    dy = [normal(*inputs["x"].shape, dtype=torch.bfloat16)]
    call: dict[str, Any] = {"cu_seqlens": offsets(lengths), "dt_softplus": True, **options}
    found, triton = (vjp(ssd, inputs, dy, impl=impl, **call) for impl in ("cuda", "triton"))
    exact = vjp(refs.ssd, {name: value.double() for name, value in inputs.items()}, [dy[0].double()], **call)
    for name in inputs:
        allowed = 1.1 * error(triton[name], exact[name]) + 1e-5
        assert error(found[name], exact[name]) <= allowed, f"{name} {where}: {error(found[name], exact[name])} {allowed}"
        if len(found[name]) == len(dy[0]):
            assert not found[name][sum(lengths) :].any(), f"slack of {name} {where}"


def test_matches_the_reference_on_layouts() -> None:
    for lengths in ([CHUNK], [CHUNK + 1, 0, 3], [2 * SEGMENT + 1, 40, 0, 17, 65, 33]):
        matches(lengths, sample(lengths, slack=3), str(lengths))
