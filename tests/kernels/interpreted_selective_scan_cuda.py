"""selective_scan.cu: the tests of the Triton kernels, and some of its own.

Its threads run on the CPU; the smaller kernels are interpreted.
"""

import shutil
from importlib import import_module
from typing import Any

import pytest

from packproof.kernels import selective_scan_launch
from tests.kernels.cases import ABOUT_THE_OP, borrowed_tests
from tests.kernels.emulator import compile as emulator

SIZE, KEEP = 64, 32
SMALL = selective_scan_launch._Tiles(
    ends={"SIZE": SIZE, "BLOCK_D": 128},
    scan={"WINDOW": 32, "SIZE": SIZE, "BLOCK_D": 128},
    back={"WINDOW": 32, "SIZE": SIZE, "KEEP": KEEP, "TOKENS": 2, "BLOCK_D": 128},
    BLOCK_N=16,
    TILE=32,
    elements=256,
)
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

selective_scan_launch._TILES_NATIVE = selective_scan_launch._TILES_INTERPRETED = SMALL
selective_scan: Any = import_module("packproof.kernels.selective_scan")  # as a name in kernels it is the function
selective_scan.INTERPRETED = {"chunk": KEEP, "segment": SIZE}
selective_scan.refusal = lambda device, n: "there are too many states" if n > SMALL.BLOCK_N else ""
emulator.install()

from tests.kernels import interpreted_selective_scan  # noqa: E402  (its tests follow the sizes above)
from tests.kernels.interpreted_selective_scan import STATES, matches, sample  # noqa: E402

PROOFS = (
    "test_matches_the_reference_with_any_options",
    "test_matches_the_reference_in_blocks_of_channels_states_and_groups",
    "test_continues_from_its_final_states",
)
globals().update(borrowed_tests(interpreted_selective_scan, except_for=ABOUT_THE_OP, proofs=PROOFS))


def test_matches_the_reference_around_its_batches() -> None:
    for lengths in ([17, 15, 16, 1], [31, 33], [2 * SIZE - 1, 3]):
        matches(lengths, sample(lengths, d=3, n=16), str(lengths), **STATES)


def test_matches_the_reference_in_many_blocks_of_channels() -> None:
    for d, groups in ((132, (2, 2)), (130, (0, 0)), (258, (2, 0))):
        matches([40, 3], sample([40, 3], d=d, n=4, groups=groups), f"{d} {groups}", **STATES)
