"""Other work on the GPU while a kernel runs: blocks that spin, copies of memory, an L2 cache that is empty or full."""

# mypy: allow-untyped-calls

import random
from functools import cache
from typing import Any, Self

import torch
from torch.cuda import _utils as driver

_TRAFFIC_BYTES = 64 << 20
_L2_BYTES = 128 << 20  # more than the L2 cache of any GPU has
_MOST_SHARED = 160 << 10  # bytes of a spinning block, where a block may have so many
_QUEUE_NANOSECONDS = 200_000  # longer than the host needs to launch the calls that wait for it

_SPIN = """\
.version 7.0
.target sm_75
.address_size 64
.visible .entry packproof_spin(.param .u32 nanoseconds)
{
	.reg .u64 %start, %now, %span;
	.reg .u32 %nanoseconds;
	.reg .pred %early;
	ld.param.u32 %nanoseconds, [nanoseconds];
	cvt.u64.u32 %span, %nanoseconds;
	mov.u64 %start, %globaltimer;
SPIN:
	mov.u64 %now, %globaltimer;
	sub.u64 %now, %now, %start;
	setp.lt.u64 %early, %now, %span;
	@%early bra SPIN;
	ret;
}
"""


@cache
def _spin_kernel(device: torch.device, shared: int) -> Any:
    """The kernel that spins, of which a block may have so many bytes of shared memory."""
    with torch.cuda.device(device):
        module: Any = driver._cuda_load_module(_SPIN)
        kernel = module.packproof_spin
        kernel.set_shared_memory_config(shared)
    return kernel


class Load:
    """Work on streams of its own, beside the calls on the current one; each `disturb` draws other work. Use it in a
    `with` block.

    device: a GPU.
    random_source: draws it.
    """

    def __init__(self, device: torch.device, random_source: random.Random) -> None:
        self._random = random_source
        self._spinning, self._copying = torch.cuda.Stream(device), torch.cuda.Stream(device)
        features: Any = torch.cuda.get_device_properties(device)
        self._blocks = features.multi_processor_count
        self._most_shared = min(_MOST_SHARED, features.shared_memory_per_block_optin)
        self._spin = _spin_kernel(device, self._most_shared)
        self._source = torch.empty(_TRAFFIC_BYTES, dtype=torch.uint8, device=device)
        self._destination = torch.empty_like(self._source)
        self._cache_lines = torch.empty(_L2_BYTES, dtype=torch.uint8, device=device)

    def __enter__(self) -> Self:
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._wait()

    def _wait(self) -> None:
        """Before the copies and after them: memory that the allocator hands on may be in use on another stream."""
        torch.cuda.synchronize(self._source.device)

    def hold_back(self) -> None:
        """The current stream waits: what is launched meanwhile runs back to back."""
        self._launch(torch.cuda.current_stream(), blocks=1, threads=32, shared=0, nanoseconds=_QUEUE_NANOSECONDS)

    def disturb(self) -> None:
        """Start what runs beside the next call: any of spinning blocks, copies, and a flush of the L2 cache before."""
        for _ in range(self._random.choice((0, 1, 1, 2, 4))):
            self._launch(
                self._spinning,
                blocks=self._random.choice((1, self._blocks // 2, self._blocks, 2 * self._blocks)),
                threads=32 * self._random.choice((1, 4, 8, 16, 32)),
                shared=self._random.choice((0, 16 << 10, 40 << 10, self._most_shared)),
                nanoseconds=self._random.choice((5_000, 20_000, 50_000, 100_000)),
            )
        if self._random.random() < 0.5:
            with torch.cuda.stream(self._copying):
                length = self._random.choice((1 << 20, 1 << 24, _TRAFFIC_BYTES))
                self._destination[:length].copy_(self._source[:length])
        if self._random.random() < 0.25:
            self._cache_lines.zero_()

    def _launch(self, stream: torch.cuda.Stream, *, blocks: int, threads: int, shared: int, nanoseconds: int) -> None:
        self._spin((blocks, 1, 1), (threads, 1, 1), [nanoseconds], shared_mem=shared, stream=stream)
