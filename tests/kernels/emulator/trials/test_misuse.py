"""What a pipeline may get wrong on Hopper: the emulator sees each such mistake, and none where there is none."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.kernels.emulator.compile import Violation
from tests.kernels.emulator.trials.running import launch, on_a_cpu, on_both, tensor_map

TILES, SHARED = 5, 2 * 17 * 1024 + 8192 + 32 + 1024

MISUSES = {  # as pipeline.cu names them, in its order: the violation, or what the result then has
    "LATER_PARITY": r"writes shared memory at \d+, which warp 0 read, without a barrier",
    "NO_WAIT_FOR_COPIES": r"writes shared memory at \d+, which warp 0 read, without a barrier",
    "NO_WAIT_FOR_CONSUMERS": r"the mbarrier at \d+ has all the arrivals of its phase, and lacks bytes",
    "STAGE_OFF_BY_ONE": r"uses shared memory at \d+, which a copy of thread 128 still fills",
    "OTHER_SWIZZLE": r"uses shared memory at \d+, which a copy of thread 128 still fills",
    "OTHER_STRIDE": "another result",
    "NO_WGMMA_FENCE": r"a product without a wgmma_fence\(\) before it",
    "ONE_WGMMA_FENCE": r"A was written after the last wgmma_fence\(\)",
    "NO_COMMIT": r"writes shared memory at \d+, which a product or a store in flight reads",
    "NO_WGMMA_WAIT": r"writes shared memory at \d+, which a product or a store in flight reads",
    "WAIT_FOR_ALL_BUT_ONE": r"writes shared memory at \d+, which a product or a store in flight reads",
    "SUM_READ_BEFORE_WAIT": "another result",
    "SUM_WRITTEN_BEFORE_WAIT": "D was written before its product was waited for",
    "OPERAND_WRITTEN_BEFORE_WAIT": "A was written before its product was waited for",
    "RELEASED_BEFORE_WAIT": r"writes shared memory at \d+, which warp \d read, without a barrier",
    "NO_ASYNC_FENCE": r"which thread \d+ wrote, without a fence_async_proxy\(\)",
    "NO_BARRIER": r"uses shared memory at \d+, which thread \d+ wrote, without a barrier",
    "NO_WAIT_FOR_STORES": "ends before its stores from shared memory were waited for",
    "EXPECTS_MORE": "all threads wait, thread 128 for the phase of parity 0 of the mbarrier",
    "EXPECTS_LESS": r"the mbarrier at \d+ got 16 bytes more than it expects",
    "NO_INIT_FENCE": r"a copy for the mbarrier at \d+, without fence_mbarrier_init\(\)",
    "NO_BARRIER_AFTER_INIT": r"uses shared memory at \d+, which thread 0 wrote, without a barrier",
    "OTHER_ARRIVALS": "all threads wait, thread 128 for the phase of parity 0 of the mbarrier",
    "BARRIER_OF_FEWER": r"uses shared memory at \d+, which thread \d+ wrote, without a barrier",
    "ONE_WARP_SETS_REGISTERS": "not all of its warpgroup set its registers",
    "TABLE_READ_AFTER_RELEASE": r"writes shared memory at \d+, which warp 0 read, without a barrier",
}
NAMES = ("NONE", *MISUSES)


def pipeline(misuse: str, device: str, shared: int = SHARED) -> tuple[Tensor, Tensor]:
    """What the kernel computes and what it should."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randint(-2, 3, shape, generator=generator).to(device)  # noqa: E731
    a, x, weights = draw(64, 64 * TILES), draw(64 * TILES, 64), draw(64 * TILES)
    expected = (a.double() * weights) @ x.double()
    y = torch.full((64, 64), torch.nan, device=device, dtype=torch.bfloat16)
    tensors = {"a": a.bfloat16(), "x": x.bfloat16(), "y": y}
    maps = {name: tensor_map(tensor, (64, 64), 128) for name, tensor in tensors.items()}
    options = {"weights": weights.float(), "tiles": TILES, "misuse": NAMES.index(misuse)}
    launch("pipeline.cu", "pipeline", 256, shared, device, **maps, **options)
    return y, expected.bfloat16()


def test_each_misuse_of_the_kernel_is_here() -> None:
    text = (Path(__file__).parent / "pipeline.cu").read_text()
    assert tuple(re.findall(r"\b[A-Z_]+\b", text[text.index("NONE,") : text.index("};")])) == NAMES


@on_both
def test_without_misuse_it_is_exact(device: str) -> None:
    y, expected = pipeline("NONE", device)
    assert torch.equal(y, expected)


@on_a_cpu
@pytest.mark.parametrize("misuse", MISUSES)
def test_a_misuse_is_seen(misuse: str) -> None:
    if MISUSES[misuse] == "another result":
        y, expected = pipeline(misuse, "cpu")
        assert not torch.equal(y, expected)
    else:
        with pytest.raises(Violation, match=MISUSES[misuse]):
            pipeline(misuse, "cpu")


@on_a_cpu
def test_shared_memory_ends_where_the_launch_says() -> None:
    with pytest.raises(Violation, match=r"shared memory at \d+ to \d+, past its end"):
        pipeline("NONE", "cpu", shared=SHARED - 2048)
