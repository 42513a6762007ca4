"""Puts pauses into PTX, so that warps and blocks arrive at barriers and at memory in other orders.

A warp draws its pauses from a number of its own: of the seed, its block, its place there and the time of the launch. So
each launch has other ones. Most warps hardly pause, a few pause at every other place. A pause changes no register of
the program and no memory, so that a correct program computes the same.
"""

import random
import re
from collections.abc import Iterator

_FUNCTION = re.compile(r"^\s*(?:\.(?:visible|weak|extern|common)\s+)*\.(?:entry|func)\b")
_STATEMENT = re.compile(r"^\s*(?:@!?%\w+\s+)?(?P<opcode>[a-z][\w.:]*)\b.*;\s*(?://.*)?$")
# not wgmma.commit_group: between products under way and their group ptxas would put waits of its own
_BARRIER = re.compile(
    r"bar\.|barrier\.|mbarrier\.(?!init|inval)|cp\.async\.(?:bulk\.)?(?:wait_|commit_group)|cp\.async\.mbarrier"
    r"|wgmma\.wait_group|tcgen05\.(?:wait|commit|fence)|fence\b|membar\b"
)
_MEMORY = re.compile(
    r"(?:ld|st)\.(?!param|const|local)|atom\.|red\.(?!async)|ldmatrix\.|stmatrix\.|cp\.(?:async|reduce)\b"
)
_MOST_MEMORY = 128  # places of a function at loads and stores that pause: more would mostly lengthen compilation

_STATE, _LIMIT, _SPAN, _NOW, _PAUSES = (f"%packproof_{n}" for n in ("state", "limit", "span", "now", "pauses"))

# After a function's opening brace. The time counts in steps of 16 us, and murmur's mixing spreads each bit. Two bits
# choose how often the warp pauses (1 in 8,192, 512, 32 or 2 places), two how long (below 64, 256, 1,024 or 4,096 ns);
# one warp in four begins up to 16 us late.
_ENTRY = f"""\
	.reg .b32 {_STATE}, {_LIMIT}, {_SPAN}, {_NOW};
	.reg .pred {_PAUSES};
	mov.u32 {_STATE}, %globaltimer_lo;
	shr.u32 {_STATE}, {_STATE}, 14;
	mov.u32 {_NOW}, %ctaid.x;
	mad.lo.u32 {_STATE}, {_NOW}, 2654435761, {_STATE};
	mov.u32 {_NOW}, %ctaid.y;
	mad.lo.u32 {_STATE}, {_NOW}, 2246822519, {_STATE};
	mov.u32 {_NOW}, %ctaid.z;
	mad.lo.u32 {_STATE}, {_NOW}, 3266489917, {_STATE};
	mov.u32 {_NOW}, %tid.x;
	shr.u32 {_NOW}, {_NOW}, 5;
	mad.lo.u32 {_STATE}, {_NOW}, 668265263, {_STATE};
	mov.u32 {_NOW}, %tid.y;
	mad.lo.u32 {_STATE}, {_NOW}, 374761393, {_STATE};
	xor.b32 {_STATE}, {_STATE}, SEED;
	shr.u32 {_NOW}, {_STATE}, 16;
	xor.b32 {_STATE}, {_STATE}, {_NOW};
	mul.lo.u32 {_STATE}, {_STATE}, 2246822507;
	shr.u32 {_NOW}, {_STATE}, 13;
	xor.b32 {_STATE}, {_STATE}, {_NOW};
	mul.lo.u32 {_STATE}, {_STATE}, 3266489909;
	shr.u32 {_NOW}, {_STATE}, 16;
	xor.b32 {_STATE}, {_STATE}, {_NOW};
	and.b32 {_NOW}, {_STATE}, 3;
	mad.lo.u32 {_NOW}, {_NOW}, 4, 19;
	mov.u32 {_LIMIT}, 1;
	shl.b32 {_LIMIT}, {_LIMIT}, {_NOW};
	shr.u32 {_NOW}, {_STATE}, 2;
	and.b32 {_NOW}, {_NOW}, 3;
	mad.lo.u32 {_NOW}, {_NOW}, 2, 6;
	mov.u32 {_SPAN}, 1;
	shl.b32 {_SPAN}, {_SPAN}, {_NOW};
	sub.u32 {_SPAN}, {_SPAN}, 1;
	shr.u32 {_NOW}, {_STATE}, 8;
	and.b32 {_NOW}, {_NOW}, 16383;
	setp.lt.u32 {_PAUSES}, {_STATE}, 1073741824;
	@{_PAUSES} nanosleep.u32 {_NOW};
"""
# the upper bits of a linear congruential generator decide, the middle ones are the time
_PAUSE = f"""\
	mad.lo.u32 {_STATE}, {_STATE}, 1664525, 1013904223;
	shr.u32 {_NOW}, {_STATE}, 8;
	and.b32 {_NOW}, {_NOW}, {_SPAN};
	setp.lt.u32 {_PAUSES}, {_STATE}, {_LIMIT};
	@{_PAUSES} nanosleep.u32 {_NOW};
"""


def with_pauses(ptx: str, seed: int) -> str:
    """The module with pauses at the start of each function, before and after each barrier, wait and fence, and before
    and after loads, stores and atomics; of these last places 128 a function at most, drawn by the seed.

    ptx: for sm_70 or newer, of which each statement ends its line.
    """
    lines, chooser = ptx.splitlines(keepends=True), random.Random(seed)
    paused = set[int]()
    openings = dict[int, None]()
    for opening, closing in _bodies(lines):
        openings[opening] = None
        opcodes = {n: m["opcode"] for n in range(opening + 1, closing) if (m := _STATEMENT.match(lines[n]))}
        memory = [n for n, opcode in opcodes.items() if _MEMORY.match(opcode)]
        paused.update(n for n, opcode in opcodes.items() if _BARRIER.match(opcode))
        paused.update(memory if len(memory) <= _MOST_MEMORY else chooser.sample(memory, _MOST_MEMORY))
    entry = _ENTRY.replace("SEED", str(seed % 2**32))
    return "".join(
        line + entry if n in openings else _PAUSE + line + _PAUSE if n in paused else line
        for n, line in enumerate(lines)
    )


def _bodies(lines: list[str]) -> Iterator[tuple[int, int]]:
    """The lines of the braces around each function's body. Those of scopes and operands inside stand in any column."""
    opening, depth, in_head = -1, 0, False
    for n, line in enumerate(lines):
        code = line.partition("//")[0]
        in_head = (in_head or bool(_FUNCTION.match(code))) and not code.rstrip().endswith(";")
        if in_head and code.startswith("{"):
            opening, in_head = n, False
        depth += code.count("{") - code.count("}")
        if opening >= 0 and depth == 0:
            yield opening, n
            opening = -1
