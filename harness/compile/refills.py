"""Whether a compiled loop refills a buffer in shared memory before what it holds was read (triton-lang/triton#8139).

Triton's pipeliner (3.6.0, 3.7.1) loads the tiles of later iterations into the buffers of those that are done with. It
places these loads after the last use in the loop's own body, and overlooks a use in a branch or a loop inside. With as
many buffers as iterations that it loads ahead, the load goes into the very buffer that is in use: the branch then reads
a later iteration's tile, or the zeros of a load past the last iteration.
"""

import re
from collections import Counter
from collections.abc import Iterator

_VALUE = r"%[\w#]+"
_BUFFERS = re.compile(rf"({_VALUE}) = ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x")
_VIEW = re.compile(rf"({_VALUE}) = ttg\.memdesc_\w+ ({_VALUE})")


def refilled_buffers(ttgir: str) -> int:
    """How many buffers a loop refills before a region inside of it reads them, in the TTGIR of a kernel."""
    buffers: dict[str, str] = {}  # of each view, and of each buffer itself
    slots: dict[str, int] = {}
    outside: dict[str, int] = {}  # how deep in regions a buffer was made
    ahead: Counter[str] = Counter()  # iterations whose tiles are loaded before the loop
    refilled: list[tuple[int, str]] = []  # in loops that have not ended: how deep, which buffer
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
    """Each line, with how deep it lies in regions."""
    depth = 0
    for line in map(str.strip, ttgir.splitlines()):
        depth -= line.startswith("}")
        yield depth, line
        depth += line.endswith("{")
