"""The seeded races of kernels in CUDA C++: those of blocks.cu within a block, those of grids.cu between blocks."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from packproof.kernels import cuda
from tests.kernels.races.bug import Bug, PreparedCall, Tensors, whole_numbers

_HERE = Path(__file__).parent
_BLOCKS = 264  # two for each SM of an H200
STEPS = 24


@dataclass(frozen=True)
class StepKernel:
    """A kernel (y, x, steps) of which each block goes through rows of its own."""

    name: str
    threads: int
    per_step: int
    """Elements of x in a step of a block."""
    per_block: int
    """Elements of y that a block returns."""
    bugs: tuple[str, ...]
    file: str = "blocks.cu"


STEP_KERNELS = (
    StepKernel("double_buffer", 256, 256, 256, ("DOUBLE_BUFFER_WITHOUT_SYNC",)),
    StepKernel("single_buffer", 256, 256, 256, ("SINGLE_BUFFER_REUSED_EARLY",)),
    StepKernel("prefetch", 256, 256, 256, ("PREFETCH_INTO_THE_STAGE_IN_USE",)),
    StepKernel("tree", 256, 256, STEPS, ("TREE_WITHOUT_SYNC_BELOW_TWO_WARPS",)),
    StepKernel("total", 256, 256, 256 * STEPS, ("TOTAL_READ_BEFORE_WRITTEN",)),
    StepKernel("two_sums", 256, 256, 256 * STEPS, ("SCRATCH_OF_TWO_REDUCTIONS",)),
    StepKernel("histogram", 256, 256, 8, ("HISTOGRAM_WITHOUT_ATOMICS",)),
    StepKernel("halves", 32, 32, 32 * STEPS, ("HALVES_OF_A_WARP",)),
    StepKernel(
        "copies", 128, 512, 128, ("COPY_WAIT_OFF_BY_ONE", "COPY_WAIT_WITHOUT_SYNC", "COPY_INTO_STAGE_STILL_READ")
    ),
    StepKernel(
        "ring",
        160,
        1024,
        128,
        ("PHASE_NOT_FLIPPED", "ARRIVAL_BEFORE_THE_LAST_READ", "ARRIVAL_WITHOUT_SYNCWARP"),
    ),
    StepKernel("bulk_out", 128, 1024, 1024 * STEPS, ("BULK_STORE_STILL_READING",)),
    StepKernel("named", 256, 128, 128 * STEPS, ("NAMED_BARRIER_OF_CONSUMERS_ALONE",)),
    StepKernel("flag", 64, 32, 32 * STEPS, ("FLAG_IN_SHARED_BEFORE_DATA",), "grids.cu"),
)
# of grids.cu, with arguments y, x, parts and words: kernel, blocks, bugs
_BETWEEN_BLOCKS = (
    ("last_block", 96, ("NO_FENCE_BEFORE_THE_COUNT", "NO_SYNC_BEFORE_THE_COUNT")),
    ("chain", 96, ("FLAG_BEFORE_VALUE", "NO_FENCE_AFTER_THE_FLAG")),
    ("lock", 64, ("UNLOCKED_BEFORE_ALL_ADDED",)),
    ("split", 96, ("ONE_PART_TOO_FEW",)),
    ("columns", 96, ("SUM_WITHOUT_ATOMICS",)),
    ("zeroed", 96, ("ZEROED_BY_THE_FIRST_BLOCK",)),
    ("halo", 96, ("HALO_OF_A_NEIGHBOUR_IN_PLACE",)),
)


def path_and_macros(file: str, bug: str) -> tuple[str, cuda.Macros]:
    """The source of these kernels, with a bug or "NONE"."""
    return str(_HERE / file), (("TOKEN", "FP32"), ("BUG", bug))


def _in_steps(kernel: StepKernel, bug: str, device: torch.device, broken: bool) -> PreparedCall:
    path, macros = path_and_macros(kernel.file, bug if broken else "NONE")
    shape = _BLOCKS, STEPS, kernel.per_step
    x, other_x = whole_numbers(shape, device), whole_numbers(shape, device, seed=1)

    def call(x: Tensor) -> Tensors:
        y = torch.empty(_BLOCKS * kernel.per_block, device=device)
        arguments = {"y": y, "x": x, "steps": STEPS}
        cuda.kernels(path, device, macros).launch(kernel.name, _BLOCKS, kernel.threads, 0, arguments)
        return {"y": y}

    return PreparedCall(partial(call, x), partial(call, other_x))


def _between_blocks(kernel: str, blocks: int, bug: str, device: torch.device, broken: bool) -> PreparedCall:
    path, macros = path_and_macros("grids.cu", bug if broken else "NONE")
    x, other_x = (whole_numbers((blocks, 256), device, seed) for seed in (0, 1))
    parts, words = torch.zeros(blocks, 256, device=device), torch.zeros(blocks, dtype=torch.int32, device=device)

    def call(x: Tensor) -> Tensors:
        y = x.clone() if kernel == "halo" else torch.zeros_like(x)
        words.zero_()
        if kernel == "lock":
            parts.zero_()
        arguments = {"y": y, "x": x, "parts": parts, "words": words}
        cuda.kernels(path, device, macros).launch(kernel, blocks, 256, 0, arguments)
        return {"y": y, "parts": parts[0].clone() if kernel == "lock" else y}

    return PreparedCall(partial(call, x), partial(call, other_x))


def _name(bug: str) -> str:
    return bug.lower().replace("_", "-")


BUGS = (
    *(
        Bug(_name(bug), f"{kernel.file}:{kernel.name}", partial(_in_steps, kernel, bug))
        for kernel in STEP_KERNELS
        for bug in kernel.bugs
    ),
    *(
        Bug(_name(bug), f"grids.cu:{kernel}", partial(_between_blocks, kernel, blocks, bug))
        for kernel, blocks, bugs in _BETWEEN_BLOCKS
        for bug in bugs
    ),
)
