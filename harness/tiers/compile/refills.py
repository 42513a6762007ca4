"""Detects compiled loops that refill a shared-memory buffer before it was read (triton-lang/triton#8139).

Triton's pipeliner (3.6.0, 3.7.1) loads the tiles of later iterations into buffers that are free again. It places these
loads after the last use in the body of the loop itself, and overlooks uses in a nested branch or loop. With as many
buffers as prefetched iterations, the load overwrites a buffer in use: the branch then reads the tile of a later
iteration, or the zeros of a load past the last iteration.
"""

import re
from collections import Counter
from collections.abc import Iterator

_VALUE = r"%[\w#]+"
_BUFFERS = re.compile(rf"({_VALUE}) = ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x")
_VIEW = re.compile(rf"({_VALUE}) = ttg\.memdesc_\w+ ({_VALUE})")


def refilled_buffers(ttgir: str) -> int:
    """The number of buffers in a kernel's TTGIR that a loop refills before a region nested in it reads them."""
    buffers: dict[str, str] = {}  # view -> its buffer; a buffer is a view of itself
    slots: dict[str, int] = {}
    allocation_depths: dict[str, int] = {}  # region depth of each buffer's allocation
    prefetch_counts: Counter[str] = Counter()  # iterations prefetched before the loop
    open_refills: list[tuple[int, str]] = []  # (depth, buffer), in loops that have not ended
    overwritten = set()
    for depth, line in _operations(ttgir):
        open_refills = [(level, buffer) for level, buffer in open_refills if level <= depth]
        if allocation := _BUFFERS.search(line):
            buffers[allocation[1]], slots[allocation[1]], allocation_depths[allocation[1]] = (
                allocation[1],
                int(allocation[2]),
                depth,
            )
        elif view := _VIEW.search(line):
            buffers[view[1]] = buffers.get(view[2], "")
        else:
            used_buffers = {buffers[value] for value in re.findall(_VALUE, line) if buffers.get(value)}
            if "copy_global_to_local" not in line:
                overwritten |= {buffer for level, buffer in open_refills if buffer in used_buffers and level < depth}
            else:
                prefetch_counts.update(buffer for buffer in used_buffers if depth == allocation_depths[buffer])
                reused_buffers = (
                    buffer
                    for buffer in used_buffers
                    if depth > allocation_depths[buffer] and not prefetch_counts[buffer] % slots[buffer]
                )
                open_refills += [(depth, buffer) for buffer in reused_buffers]
    return len(overwritten)


def _operations(ttgir: str) -> Iterator[tuple[int, str]]:
    """Each line with its region depth."""
    depth = 0
    for line in map(str.strip, ttgir.splitlines()):
        depth -= line.startswith("}")
        yield depth, line
        depth += line.endswith("{")
