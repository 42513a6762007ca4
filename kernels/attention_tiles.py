"""The shapes of the work of the attention kernels, and every compiled form that follows from them."""

# mypy: allow-untyped-calls

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import torch

from packproof.kernels import blocks
from packproof.kernels.attention_bwd import (
    _attention_bwd_delta_kernel,
    _attention_bwd_kv_kernel,
    _attention_bwd_q_kernel,
)
from packproof.kernels.attention_fwd import _attention_fwd_kernel
from packproof.kernels.attention_short import (
    _attention_bwd_kv_short_kernel,
    _attention_bwd_q_short_kernel,
    _attention_fwd_short_kernel,
)
from packproof.kernels.launch import ARCHITECTURES, POINTERS, alignments, interpreted
from packproof.kernels.variant import Variant

MAX_CHANNELS = 256
BLOCK, BLOCK_INTERPRETED = 128, 16  # tokens, the most that a tile of queries or keys has
SHORT_WARPS, DELTA_WARPS = 8, 4
# each row has its own copy of the code, in which a compiler is free to fuse another product with a sum
SHORT_OPTIONS = {"enable_fp_fusion": False}
_SHORT, _SHORT_INTERPRETED = 32, 3  # queries and keys, up to which a sequence has kernels of its own
_SHORT_ROWS, _SHORT_ROWS_INTERPRETED = {128: 16, 256: 8}, 8  # of a program
_DELTA, _DELTA_INTERPRETED = {"BLOCK_T": 32, "BLOCK_V": 64}, {"BLOCK_T": 16, "BLOCK_V": 4}
_MULTIPLE, _MULTIPLE_INTERPRETED = 16, 2  # elements: rows start at multiples, so that a kernel has one compiled form
_CHANNELS, _CHANNELS_INTERPRETED = 32, 16  # of fp32 that meet in a product at a time
# keys that each query of a block may see for its weights to have two parts
_FEW, _FEW_INTERPRETED = 160, 32
_LARGER = 15  # weights of fp16 are 2^15 times as large as usual


class Tile(NamedTuple):
    """Queries and keys of a tile, and the launch options. registers: the most that a thread has, 0 for no limit.

    tma: keys and values, for dk and dv queries and dy, are read by the tensor memory accelerator where a tile is whole.
    several: a program may take several blocks, for which others lack the registers.
    """

    m: int
    n: int
    num_warps: int
    num_stages: int
    registers: int = 0
    tma: bool = False
    several: bool = False

    @property
    def options(self) -> dict[str, int]:
        return {"maxnreg": self.registers} if self.registers else {}


_FWD_HOPPER = Tile(64, 64, 4, 3, tma=True, several=True)
# by kernel and kind of GPU: for up to 64, 128 and 256 channels. The kind "any" is for fp32, for fp16 in backward, which
# is split like fp32, and under a softcap
_TILES: dict[tuple[str, str], tuple[Tile, Tile, Tile]] = {
    ("fwd", "hopper"): (_FWD_HOPPER, _FWD_HOPPER, Tile(128, 32, 8, 2)),
    ("fwd", "nvidia"): (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(64, 32, 8, 2)),
    ("fwd", "amd"): (Tile(128, 32, 4, 1), Tile(128, 32, 8, 1), Tile(32, 32, 8, 1)),
    ("fwd", "any"): (Tile(64, 32, 8, 1), Tile(64, 32, 8, 1), Tile(32, 32, 8, 1)),
    ("q", "hopper"): (Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 16, 4, 2)),
    ("q", "nvidia"): (Tile(64, 32, 4, 2), Tile(64, 32, 8, 2), Tile(64, 32, 8, 1)),
    ("q", "amd"): (Tile(64, 32, 4, 1), Tile(64, 32, 8, 1), Tile(32, 16, 8, 1)),
    ("q", "any"): (Tile(32, 32, 4, 1), Tile(32, 16, 8, 1), Tile(32, 16, 8, 1)),
    ("kv", "hopper"): (Tile(32, 128, 8, 3), Tile(32, 128, 8, 3), Tile(32, 32, 8, 1)),
    ("kv", "nvidia"): (Tile(32, 32, 4, 2), Tile(32, 32, 8, 2), Tile(32, 32, 8, 1)),
    ("kv", "amd"): (Tile(32, 64, 4, 1), Tile(16, 64, 8, 1), Tile(16, 32, 8, 1)),
    ("kv", "any"): (Tile(16, 32, 8, 1), Tile(16, 16, 8, 1), Tile(16, 16, 8, 1)),
}
_TILE_INTERPRETED = Tile(BLOCK_INTERPRETED, BLOCK_INTERPRETED, 4, 1)
_WIDTHS = (64, 128, 256)  # channels of a tile
# bytes that are spilled, by kernel, kind and channels: outside of loops, and a few where nothing was timed
_SPILLS = {
    **{("fwd", "hopper", 256): 32, ("q", "hopper", 256): 32, ("kv", "hopper", 128): 32, ("fwd", "nvidia", 256): 8},
    **{("fwd", "any", 64): 44, ("q", "any", 128): 20, ("q", "any", 256): 12, ("kv", "any", 64): 36},
}
_SPILLS_SHORT = 48  # so that registers suffice for two programs: most of it fp32 keys of 256 channels


def is_interpreted() -> bool:
    return interpreted(_attention_fwd_kernel)


def multiple() -> int:
    return _MULTIPLE_INTERPRETED if is_interpreted() else _MULTIPLE


def tile_of(kernel: str, kind: str, width: int) -> Tile:
    """The tile of a kernel ("fwd", "q", "kv") for heads of that width, one of _WIDTHS."""
    if is_interpreted():
        return _TILE_INTERPRETED._replace(several=kernel == "fwd")
    return _TILES[kernel, kind][_WIDTHS.index(width)]


def width_of(channels: int) -> int:
    narrowest = 16 if is_interpreted() else _WIDTHS[0]
    return max(1 << max(channels - 1, 0).bit_length(), narrowest)


def kind_of(kernel: str, dtype: torch.dtype, softcap: bool, kind: str) -> str:
    """Which of the tiles of a kernel are for a kind of GPU."""
    split = dtype == torch.float32 or (dtype == torch.float16 and kernel != "fwd")
    return "any" if softcap or split else kind


def short_shape(width: int) -> dict[str, int]:
    """What the kernels for short sequences are compiled for."""
    if is_interpreted():
        return {"SHORT": _SHORT_INTERPRETED, "ROWS": _SHORT_ROWS_INTERPRETED, "BLOCK": width}
    block = max(width, min(_SHORT_ROWS))
    return {"SHORT": _SHORT, "ROWS": _SHORT_ROWS[block], "BLOCK": block}


def delta_shape() -> dict[str, int]:
    return _DELTA_INTERPRETED if is_interpreted() else _DELTA


def channels_of_product() -> int:
    return _CHANNELS_INTERPRETED if is_interpreted() else _CHANNELS


def few_keys(tile: Tile, left: int, right: int) -> int:
    """Where queries see all that comes before them, those of the first block of a sequence see fewest: the error is
    theirs, and the second block costs 2 % of a sequence of 1,024."""
    few = _FEW_INTERPRETED if is_interpreted() else _FEW
    return min(few, tile.m) if left < 0 and right == 0 else few


def larger(dtype: torch.dtype) -> int:
    """Weights of the dtype are 2 to the power of this times as large as usual."""
    return _LARGER if dtype == torch.float16 else 0


_TOKENS = ("q", "k", "v", "sinks", "y", "dy", "dq", "dk", "dv")
_FP32 = ("lse", "delta", "dlse", "dsinks")
_INT32 = ("cu_seqlens", "cu_keys", "blocks", "unlisted")
_SCALARS = ("scale", "cap_scale", "dq_factor", "dk_factor", "dv_factor", "k_factor")
_DESCRIPTORS = ("k_tiles", "v_tiles", "q_tiles", "dy_tiles")
_KERNELS = {"fwd": _attention_fwd_kernel, "q": _attention_bwd_q_kernel, "kv": _attention_bwd_kv_kernel}
_SHORT_KERNELS = {
    "fwd": _attention_fwd_short_kernel,
    "q": _attention_bwd_q_short_kernel,
    "kv": _attention_bwd_kv_short_kernel,
}
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def variants() -> list[Variant]:
    """Every compiled form of the kernels. All operands are aligned, so that dtypes, tiles and a softcap decide."""
    found = [
        form
        for (name, dtype, width, softcap) in product(_KERNELS, _DTYPES, _WIDTHS, (False, True))
        for form in _forms(name, dtype, width, softcap)
    ]
    found += [
        replace(
            _form(f"short-{name}-{POINTERS[dtype][1:]}-{width}", kernel, dtype, short_shape(width), SHORT_WARPS),
            options=SHORT_OPTIONS,
            spills=_SPILLS_SHORT,
        )
        for (name, kernel), dtype, width in product(_SHORT_KERNELS.items(), _DTYPES, _SHORT_ROWS)
    ]
    found += [
        _form(f"delta-{POINTERS[dtype][1:]}", _attention_bwd_delta_kernel, dtype, _DELTA, DELTA_WARPS)
        for dtype in _DTYPES
    ]
    return [*found, *blocks.variants()]


def _forms(name: str, dtype: torch.dtype, width: int, softcap: bool) -> Iterator[Variant]:
    """One for all GPUs, or one for each kind of them; another one without descriptors, for heads of other widths."""
    for kind, targets in {kind_of(name, dtype, softcap, kind): t for kind, t in ARCHITECTURES.items()}.items():
        tile = tile_of(name, kind, width)
        constants = {"SOFTCAP": softcap, "OFFSET": larger(dtype), "BLOCK_M": tile.m, "BLOCK_N": tile.n}
        constants |= {"BLOCK_K": width, "BLOCK_V": width, "CHANNELS": _CHANNELS}
        label = f"{kind}-{name}-{POINTERS[dtype][1:]}-{width}{'-softcap' if softcap else ''}"
        for tma, constants["SEVERAL"] in product(*((False, True)[: 1 + having] for having in (tile.tma, tile.several))):
            full = label + "-tma" * tma + "-several" * constants["SEVERAL"]
            form = _form(full, _KERNELS[name], dtype, constants, tile.num_warps, tma=tma)
            form = replace(form, num_stages=tile.num_stages, options=tile.options)
            spills = _SPILLS.get((name, kind, width), 0)
            yield replace(form, targets=() if kind == "any" else targets, spills=spills)


def _form(
    label: str, kernel: Any, dtype: torch.dtype, constants: dict[str, Any], num_warps: int, *, tma: bool = False
) -> Variant:
    types: dict[str, str | None] = dict.fromkeys(_DESCRIPTORS)
    types |= dict.fromkeys(_TOKENS, POINTERS[dtype]) | dict.fromkeys(_FP32, "*fp32")
    types |= dict.fromkeys(_INT32, "*i32") | dict.fromkeys(_SCALARS, "fp32")
    if tma:
        rows = constants["BLOCK_M" if "q_tiles" in kernel.arg_names else "BLOCK_N"]
        types |= dict.fromkeys(_DESCRIPTORS, f"tensordesc<{POINTERS[dtype][1:]}[{rows}, {constants['BLOCK_K']}]>")
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    aligned_form, *_ = alignments(label, kernel, types, constants, num_warps)
    return replace(aligned_form, divisible=tuple(a for a in aligned_form.divisible if a not in _DESCRIPTORS))
