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
    outside: dict[str, int] = {}  # region depth of each buffer's allocation
    ahead: Counter[str] = Counter()  # iterations prefetched before the loop
    refilled: list[tuple[int, str]] = []  # (depth, buffer), in loops that have not ended
    found = set()
    for depth, line in _operations(ttgir):
        refilled = [(level, buffer) for level, buffer in refilled if level <= depth]
        if made := _BUFFERS.search(line):
            buffers[made[1]], slots[made[1]], outside[made[1]] = made[1], int(made[2]), depth
        elif seen := _VIEW.search(line):
            buffers[seen[1]] = buffers.get(seen[2], "")
        else:
            used = {buffers[value] for value in re.findall(_VALUE, line) if buffers.get(value)}
            if "copy_global_to_local" not in line:
                found |= {buffer for level, buffer in refilled if buffer in used and level < depth}
            else:
                ahead.update(buffer for buffer in used if depth == outside[buffer])
                again = (buffer for buffer in used if depth > outside[buffer] and not ahead[buffer] % slots[buffer])
                refilled += [(depth, buffer) for buffer in again]
    return len(found)


def _operations(ttgir: str) -> Iterator[tuple[int, str]]:
    """Each line with its region depth."""
    depth = 0
    for line in map(str.strip, ttgir.splitlines()):
        depth -= line.startswith("}")
        yield depth, line
        depth += line.endswith("{")
