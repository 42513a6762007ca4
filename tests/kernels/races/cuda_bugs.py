"""The seeded races of kernels in CUDA C++: those of blocks.cu within a block, those of grids.cu between blocks."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from packproof.kernels import cuda
from tests.kernels.races.bug import Bug, PreparedCall, Tensors, whole_numbers

_HERE = Path(__file__).parent
_BLOCKS = 264  # two for each SM of an H200
_STEPS = 24

# of blocks.cu: kernel, threads, elements of a step, elements that a block returns, bugs
_IN_BLOCKS = (
    ("double_buffer", 256, 256, 256, ("DOUBLE_BUFFER_WITHOUT_SYNC",)),
    ("single_buffer", 256, 256, 256, ("SINGLE_BUFFER_REUSED_EARLY",)),
    ("prefetch", 256, 256, 256, ("PREFETCH_INTO_THE_STAGE_IN_USE",)),
    ("tree", 256, 256, _STEPS, ("TREE_WITHOUT_SYNC_BELOW_TWO_WARPS",)),
    ("total", 256, 256, 256 * _STEPS, ("TOTAL_READ_BEFORE_WRITTEN",)),
    ("two_sums", 256, 256, 256 * _STEPS, ("SCRATCH_OF_TWO_REDUCTIONS",)),
    ("histogram", 256, 256, 8, ("HISTOGRAM_WITHOUT_ATOMICS",)),
    ("flag", 64, 32, 32 * _STEPS, ("FLAG_IN_SHARED_BEFORE_DATA",)),
    ("halves", 32, 32, 32 * _STEPS, ("HALVES_OF_A_WARP",)),
    ("copies", 128, 512, 128, ("COPY_WAIT_OFF_BY_ONE", "COPY_WAIT_WITHOUT_SYNC", "COPY_INTO_STAGE_STILL_READ")),
    (
        "ring",
        160,
        1024,
        128,
        ("PHASE_NOT_FLIPPED", "ONE_ARRIVAL_TOO_FEW", "EMPTY_NOT_AWAITED", "ARRIVAL_BEFORE_THE_LAST_READ"),
    ),
    ("bulk_out", 128, 1024, 1024 * _STEPS, ("BULK_STORE_STILL_READING",)),
    ("named", 256, 128, 128 * _STEPS, ("NAMED_BARRIER_OF_CONSUMERS_ALONE",)),
)
# of grids.cu: kernel, blocks, bugs
_BETWEEN_BLOCKS = (
    ("last_block", 96, ("NO_FENCE_BEFORE_THE_COUNT", "NO_SYNC_BEFORE_THE_COUNT")),
    ("chain", 96, ("FLAG_BEFORE_VALUE", "NO_FENCE_AFTER_THE_FLAG")),
    ("lock", 64, ("UNLOCKED_BEFORE_ALL_ADDED",)),
    ("split", 96, ("ONE_PART_TOO_FEW",)),
    ("columns", 96, ("SUM_WITHOUT_ATOMICS",)),
    ("zeroed", 96, ("ZEROED_BY_THE_FIRST_BLOCK",)),
    ("halo", 96, ("HALO_OF_A_NEIGHBOUR_IN_PLACE",)),
)


def _kernels(file: str, device: torch.device, bug: str) -> cuda.Kernels:
    return cuda.kernels(str(_HERE / file), device, (("TOKEN", "FP32"), ("BUG", bug)))


def _in_block(
    kernel: str, threads: int, per_step: int, per_block: int, bug: str, device: torch.device, broken: bool
) -> PreparedCall:
    shape = _BLOCKS, _STEPS, per_step
    x, other_x = whole_numbers(shape, device), whole_numbers(shape, device, seed=1)

    def call(x: Tensor) -> Tensors:
        y = torch.empty(_BLOCKS * per_block, device=device)
        arguments = {"y": y, "x": x, "steps": _STEPS}
        _kernels("blocks.cu", device, bug if broken else "NONE").launch(kernel, _BLOCKS, threads, 0, arguments)
        return {"y": y}

    return PreparedCall(partial(call, x), partial(call, other_x))


def _between_blocks(kernel: str, blocks: int, bug: str, device: torch.device, broken: bool) -> PreparedCall:
    x, other_x = (whole_numbers((blocks, 256), device, seed) for seed in (0, 1))
    parts, words = torch.zeros(blocks, 256, device=device), torch.zeros(blocks, dtype=torch.int32, device=device)

    def call(x: Tensor) -> Tensors:
        y = x.clone() if kernel == "halo" else torch.zeros_like(x)
        words.zero_()
        if kernel == "lock":
            parts.zero_()
        arguments = {"y": y, "x": x, "parts": parts, "words": words}
        _kernels("grids.cu", device, bug if broken else "NONE").launch(kernel, blocks, 256, 0, arguments)
        return {"y": y, "parts": parts[0].clone() if kernel == "lock" else y}

    return PreparedCall(partial(call, x), partial(call, other_x))


def _name(bug: str) -> str:
    return bug.lower().replace("_", "-")


BUGS = (
    *(
        Bug(_name(bug), f"blocks.cu:{kernel}", partial(_in_block, kernel, *sizes, bug))
        for kernel, *sizes, bugs in _IN_BLOCKS
        for bug in bugs
    ),
    *(
        Bug(_name(bug), f"grids.cu:{kernel}", partial(_between_blocks, kernel, blocks, bug))
        for kernel, blocks, bugs in _BETWEEN_BLOCKS
        for bug in bugs
    ),
)
