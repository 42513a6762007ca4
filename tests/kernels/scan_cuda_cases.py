"""What selective_scan.cu must do, by `python scan_cuda_cases.py`: the cases of scan_cases.py, and some of its own.

Its threads run on the CPU; the smaller kernels are interpreted.
"""

import tempfile
from importlib import import_module
from pathlib import Path

from cases import case, run_cases
from emulator.compile import Emulated

from packproof.kernels import cuda, selective_scan_launch

SIZE, KEEP = 64, 32
SMALL = selective_scan_launch._Tiles(
    ends={"SIZE": SIZE, "BLOCK_D": 128},
    scan={"WINDOW": 32, "SIZE": SIZE, "BLOCK_D": 128},
    back={"WINDOW": 32, "SIZE": SIZE, "KEEP": KEEP, "TOKENS": 2, "BLOCK_D": 128},
    BLOCK_N=16,
    TILE=32,
    elements=256,
)
BUILT = tempfile.TemporaryDirectory()

selective_scan_launch._TILES_NATIVE = selective_scan_launch._TILES_INTERPRETED = SMALL
selective_scan = import_module("packproof.kernels.selective_scan")  # the name in packproof.kernels is the function
selective_scan.INTERPRETED = {"chunk": KEEP, "segment": SIZE}
selective_scan.refusal = lambda device, n: "there are too many states" if n > SMALL.BLOCK_N else ""
cuda.kernels = lambda name, device, macros: Emulated(name, macros, Path(BUILT.name))

from scan_cases import STATES, matches, sample  # noqa: E402  (cases that follow the sizes above)


@case
def matches_the_reference_around_its_batches() -> None:
    for lengths in ([17, 15, 16, 1], [31, 33], [2 * SIZE - 1, 3]):
        matches(lengths, sample(lengths, d=3, n=16), str(lengths), **STATES)


@case
def matches_the_reference_in_many_blocks_of_channels() -> None:
    for d, groups in ((132, (2, 2)), (130, (0, 0)), (258, (2, 0))):
        matches([40, 3], sample([40, 3], d=d, n=4, groups=groups), f"{d} {groups}", **STATES)


if __name__ == "__main__":
    run_cases()
