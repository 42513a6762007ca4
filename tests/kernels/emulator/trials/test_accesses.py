"""What a kernel may get wrong with ordinary pointers: the emulator sees each such mistake, and no other."""

import re
from pathlib import Path

import pytest
import torch

from tests.kernels.emulator.compile import Violation
from tests.kernels.emulator.trials.running import launch, on_a_cpu

A_RACE = r"(uses|writes) shared memory at \d+, which (thread|warp) \d+ (wrote|read), without a barrier"
MISUSES = {  # as accesses.cu names them, in its order
    "READ_PAST_THE_END": "thread 63: reads 4 bytes of global memory that are in no tensor of the launch",
    "WRITTEN_BEFORE_THE_START": "thread 0: writes 4 bytes of global memory that are in no tensor of the launch",
    "UNALIGNED": "thread 1: an access to 16 bytes that are not aligned to as many",
    "NO_BARRIER_AFTER_WRITES": A_RACE,
    "NO_BARRIER_AFTER_READS": A_RACE,
    "BARRIER_OF_A_WARP": A_RACE,
    "NO_BARRIER_OF_A_WARP": A_RACE,
    "NO_WAIT_FOR_COPIES": r"uses shared memory at \d+, which a copy of thread \d+ still fills",
    "SHARED_PAST_THE_END": r"shared memory at 504 to 508, past its end",
    "BARRIER_IN_A_BRANCH": A_RACE,
}
NAMES = ("NONE", *MISUSES)
pytestmark = on_a_cpu


def reverse(misuse: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel computes and what it should."""
    x = torch.arange(192.0)
    to = torch.full_like(x, torch.nan)
    launch("accesses.cu", "reverse", 64, 256, "cpu", **{"from": x}, to=to, rows=3, misuse=NAMES.index(misuse))
    return to, x.view(3, 64).flip(1).flatten()


def test_each_misuse_of_the_kernel_is_here() -> None:
    text = (Path(__file__).parent / "accesses.cu").read_text()
    assert tuple(re.findall(r"\b[A-Z_]+\b", text[text.index("NONE,") : text.index("};")])) == NAMES


def test_without_misuse_it_is_exact() -> None:
    y, expected = reverse("NONE")
    assert torch.equal(y, expected)


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_misuse_is_seen(misuse: str) -> None:
    with pytest.raises(Violation, match=MISUSES[misuse]):
        reverse(misuse)
