"""Multiplication by Hadamard's matrix in log2(k) stages of additions, inside a Triton kernel.

Sylvester's matrix is a product of stages, one for each bit of a channel's number: it adds and subtracts the channels
that differ in that bit, in any order of the bits. A head is read as several tiles of few channels, so that most bits
are of a tile's number or lie in the registers of one thread, where a stage moves no data between threads.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"

import triton
import triton.language as tl


@triton.jit
def across(tiles, N: tl.constexpr):
    """The stages of the bits in which the numbers of N tiles differ."""
    for bit in tl.static_range(8):
        if (1 << bit) < N:
            found = ()
            for i in tl.static_range(N):
                if (i >> bit) % 2 == 0:
                    found += (tiles[i] + tiles[i + (1 << bit)],)
                else:
                    found += (tiles[i - (1 << bit)] - tiles[i],)
            tiles = found
    return tiles


@triton.jit
def within(tile, STAGES: tl.constexpr):
    """The stages of the bits of the channels in a tile [n, 2 ** STAGES]."""
    N: tl.constexpr = tile.shape[0]
    WIDTH: tl.constexpr = tile.shape[1]
    for bit in tl.static_range(STAGES):
        apart = tl.reshape(tile, (N, WIDTH // (2 << bit), 2, 1 << bit))
        low, high = tl.split(tl.permute(apart, (0, 1, 3, 2)))
        tile = tl.reshape(tl.permute(tl.join(low + high, low - high), (0, 1, 3, 2)), (N, WIDTH))
    return tile


def width(itemsize: int) -> int:
    """Channels of a tile of which four threads read 16 bytes each, a sector of memory for every two."""
    return 4 * 16 // itemsize
