"""Tile sizes and launch options of the attention kernels, and all compiled forms."""

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
from packproof.kernels.launch import ARCHITECTURES, POINTERS, runs_interpreted, specializations
from packproof.kernels.variant import Variant

MAX_CHANNELS = 256
BLOCK, BLOCK_INTERPRETED = 128, 16  # tokens, at most, of a tile of queries or keys
SHORT_WARPS, DELTA_WARPS = 8, 4
# no fused multiply-add: the compiler may fuse differently in each copy of an unrolled row
SHORT_OPTIONS = {"enable_fp_fusion": False}
_SHORT_ROWS_LIMIT, _SHORT_INTERPRETED = 32, 3  # queries and keys of a short sequence, at most
_SHORT_ROWS, _SHORT_ROWS_INTERPRETED = {128: 16, 256: 8}, 8  # of a program
_DELTA, _DELTA_INTERPRETED = {"BLOCK_T": 32, "BLOCK_V": 64}, {"BLOCK_T": 16, "BLOCK_V": 4}
_MULTIPLE, _MULTIPLE_INTERPRETED = 16, 2  # elements: rows start at multiples, so a kernel needs one compiled form
_CHANNELS, _CHANNELS_INTERPRETED = 32, 16  # of fp32 tiles, in one product
# visible keys of each query of a block, at most, for weights in two parts
_FEW_KEYS, _FEW_KEYS_INTERPRETED = 160, 32
_FP16_WEIGHT_EXPONENT = 15  # weights of fp16 are multiplied by 2^15


class Tile(NamedTuple):
    """Sizes of a tile, and the launch options."""

    m: int
    """Queries."""
    n: int
    """Keys."""
    num_warps: int
    num_stages: int
    registers: int = 0
    """The maximum of a thread, 0 for no limit."""
    tma: bool = False
    """Whether the tensor memory accelerator reads whole tiles of keys and values (of queries and dy in the kernel of dk
    and dv).
    """
    several: bool = False
    """Whether a program may take several blocks. Elsewhere registers do not suffice."""

    @property
    def options(self) -> dict[str, int]:
        return {"maxnreg": self.registers} if self.registers else {}


_FWD_HOPPER = Tile(64, 64, 4, 3, tma=True, several=True)
# by kernel and kind of GPU: for up to 64, 128 and 256 channels. The kind "any" is for fp32, for fp16 in backward (split
# into parts like fp32), and for a softcap
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
# bytes spilled, by kernel, kind and channels: outside of loops, or few and on GPUs that were not timed
_SPILLS = {
    **{("fwd", "hopper", 256): 32, ("q", "hopper", 256): 32, ("kv", "hopper", 128): 32, ("fwd", "nvidia", 256): 8},
    **{("fwd", "any", 64): 44, ("q", "any", 128): 20, ("q", "any", 256): 12, ("kv", "any", 64): 36},
}
_SPILLS_SHORT = 48  # lets registers suffice for two programs; most of it are fp32 keys of 256 channels


def is_interpreted() -> bool:
    return runs_interpreted(_attention_fwd_kernel)


def multiple() -> int:
    return _MULTIPLE_INTERPRETED if is_interpreted() else _MULTIPLE


def tile_of(kernel: str, kind: str, width: int) -> Tile:
    """The tile of a kernel ("fwd", "q", "kv") for heads of `width` channels, one of _WIDTHS."""
    if is_interpreted():
        return _TILE_INTERPRETED._replace(several=kernel == "fwd")
    return _TILES[kernel, kind][_WIDTHS.index(width)]


def width_of(channels: int) -> int:
    narrowest = 16 if is_interpreted() else _WIDTHS[0]
    return max(1 << max(channels - 1, 0).bit_length(), narrowest)


def kind_of(kernel: str, dtype: torch.dtype, softcap: bool, kind: str) -> str:
    """The kind of tiles of a kernel for a kind of GPU, "any" where one tile serves all."""
    split = dtype == torch.float32 or (dtype == torch.float16 and kernel != "fwd")
    return "any" if softcap or split else kind


def short_shape(width: int) -> dict[str, int]:
    """The constants of the kernels for short sequences."""
    if is_interpreted():
        return {"SHORT": _SHORT_INTERPRETED, "ROWS": _SHORT_ROWS_INTERPRETED, "BLOCK": width}
    block = max(width, min(_SHORT_ROWS))
    return {"SHORT": _SHORT_ROWS_LIMIT, "ROWS": _SHORT_ROWS[block], "BLOCK": block}


def delta_shape() -> dict[str, int]:
    return _DELTA_INTERPRETED if is_interpreted() else _DELTA


def channels_of_product() -> int:
    return _CHANNELS_INTERPRETED if is_interpreted() else _CHANNELS


def few_keys(tile: Tile, window_left: int, window_right: int) -> int:
    """The number of visible keys up to which weights have two parts.

    Under a causal mask without a left limit, the first block of a sequence sees fewest keys and has the largest error.
    There it alone has two parts: with the second block a sequence of 1,024 tokens would take 2 % longer.
    """
    few = _FEW_KEYS_INTERPRETED if is_interpreted() else _FEW_KEYS
    return min(few, tile.m) if window_left < 0 and window_right == 0 else few


def weight_exponent(dtype: torch.dtype) -> int:
    """Weights of the dtype are 2 to the power of this times as large as usual."""
    return _FP16_WEIGHT_EXPONENT if dtype == torch.float16 else 0


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
    """Every compiled form of the kernels. All operands are aligned, so dtypes, tiles and a softcap decide."""
    result = [
        form
        for (name, dtype, width, softcap) in product(_KERNELS, _DTYPES, _WIDTHS, (False, True))
        for form in _forms(name, dtype, width, softcap)
    ]
    result += [
        replace(
            _form(f"short-{name}-{POINTERS[dtype][1:]}-{width}", kernel, dtype, short_shape(width), SHORT_WARPS),
            options=SHORT_OPTIONS,
            spills=_SPILLS_SHORT,
        )
        for (name, kernel), dtype, width in product(_SHORT_KERNELS.items(), _DTYPES, _SHORT_ROWS)
    ]
    result += [
        _form(f"delta-{POINTERS[dtype][1:]}", _attention_bwd_delta_kernel, dtype, _DELTA, DELTA_WARPS)
        for dtype in _DTYPES
    ]
    return [*result, *blocks.variants()]


def _forms(name: str, dtype: torch.dtype, width: int, softcap: bool) -> Iterator[Variant]:
    """The forms of one kernel for a dtype and width.

    Each kind of GPU has its own forms, unless one tile serves all ("any"). Where a tile allows descriptors, or several
    blocks in a program, there is a form with and a form without: a launch may be unable to use them.
    """
    targets_by_kind = {kind_of(name, dtype, softcap, gpu): targets for gpu, targets in ARCHITECTURES.items()}
    for kind, targets in targets_by_kind.items():
        tile = tile_of(name, kind, width)
        constants = {"SOFTCAP": softcap, "OFFSET": weight_exponent(dtype), "BLOCK_M": tile.m, "BLOCK_N": tile.n}
        constants |= {"BLOCK_K": width, "BLOCK_V": width, "CHANNELS": _CHANNELS}
        label = f"{kind}-{name}-{POINTERS[dtype][1:]}-{width}{'-softcap' if softcap else ''}"
        for tma, several in product(sorted({False, tile.tma}), sorted({False, tile.several})):
            full_label = label + "-tma" * tma + "-several" * several
            constants["SEVERAL"] = several
            form = _form(full_label, _KERNELS[name], dtype, constants, tile.num_warps, tma=tma)
            yield replace(
                form,
                num_stages=tile.num_stages,
                options=tile.options,
                targets=() if kind == "any" else targets,
                spills=_SPILLS.get((name, kind, width), 0),
            )


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
    aligned_form, *_ = specializations(label, kernel, types, constants, num_warps)
    return replace(aligned_form, divisible=tuple(a for a in aligned_form.divisible if a not in _DESCRIPTORS))
