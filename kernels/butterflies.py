"""Multiplication by Hadamard's matrix in log2(k) stages of additions, inside a Triton kernel.

Sylvester's matrix is a product of stages, one for each bit of a channel's number. A stage adds and subtracts channels
that differ in this bit; the order of the bits is free. A head is read as several tiles of few channels. Most bits then
belong to the number of a tile, or to registers of one thread, and their stages move no data between threads. The
remaining bits are between threads of a warp and use shuffles. No stage needs shared memory.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"

import triton
import triton.language as tl


@triton.jit
def transform_across_tiles(tiles, N: tl.constexpr):
    """The stages of the bits of a tile number, for N tiles."""
    for bit in tl.static_range(8):
        if (1 << bit) < N:
            combined = ()
            for i in tl.static_range(N):
                if (i >> bit) % 2 == 0:
                    combined += (tiles[i] + tiles[i + (1 << bit)],)
                else:
                    combined += (tiles[i - (1 << bit)] - tiles[i],)
            tiles = combined
    return tiles


@triton.jit
def transform_within_tile(tile, STAGES: tl.constexpr, OWN: tl.constexpr):
    """The stages of the channel bits in a tile [n, 2 ** STAGES]. A thread holds 2 ** OWN adjacent channels."""
    N: tl.constexpr = tile.shape[0]
    WIDTH: tl.constexpr = tile.shape[1]
    for bit in tl.static_range(STAGES - 1, -1, -1):
        pairs = tl.reshape(tile, (N, WIDTH // (2 << bit), 2, 1 << bit))
        if bit < OWN:
            low, high = tl.split(tl.permute(pairs, (0, 1, 3, 2)))
            tile = tl.reshape(tl.permute(tl.join(low + high, low - high), (0, 1, 3, 2)), (N, WIDTH))
        else:
            tile = tl.reshape(_exchange_pairs(pairs), (N, WIDTH))
    return tile


@triton.jit
def _exchange_pairs(tile):
    """The stage of the third axis, with its two members in two threads of a warp.

    A sum over the axis without carry (xor) is both members at once. So one shuffle gives each thread the other's
    member.
    """
    bits = tile.to(tl.int32, bitcast=True)
    partner = (tl.xor_sum(bits, 2, keep_dims=True) ^ bits).to(tl.float32, bitcast=True)
    sign = (1 - 2 * tl.arange(0, 2)).to(tl.float32)
    return partner + tile * sign[None, None, :, None]


def tile_width(itemsize: int) -> int:
    """Channels of a tile: four threads read 16 bytes each, so two of them fill a sector of memory."""
    return 4 * 16 // itemsize


def count_thread_stages(channels: int, itemsize: int) -> int:
    """Stages of a tile of `channels` channels inside one thread. It holds 16 bytes of them."""
    return min(channels, 16 // itemsize).bit_length() - 1
