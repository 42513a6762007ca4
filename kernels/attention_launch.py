"""From tensors to launches of the attention kernels: alignment, tiles, and every compiled form."""

# mypy: allow-untyped-calls

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from packproof.kernels import blocks, slack
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
from packproof.kernels.launch import (
    ARCHITECTURES,
    POINTERS,
    aligned,
    alignments,
    architecture,
    cdiv,
    interpreted,
    launch,
)
from packproof.kernels.sequences import offsets
from packproof.kernels.slack import zero_slack
from packproof.kernels.variant import Variant

MAX_CHANNELS = 256
BLOCK, BLOCK_INTERPRETED = 128, 16  # tokens, the most that a tile of queries or keys has
_SHORT, _SHORT_INTERPRETED = 32, 3  # queries and keys, up to which a sequence has kernels of its own
_SHORT_WIDTHS = (128, 256)
_SHORT_ROWS, _SHORT_ROWS_INTERPRETED, _SHORT_WARPS = 32, 8, 8
_MULTIPLE, _MULTIPLE_INTERPRETED = 16, 2  # elements: rows start at multiples, so that a kernel has one compiled form
_DELTA = {"BLOCK_T": 32, "BLOCK_V": 64}
_DELTA_INTERPRETED = {"BLOCK_T": 16, "BLOCK_V": 4}
_LARGER = 15  # weights of fp16 are 2^15 times as large as usual
_LOG2_E = 1 / math.log(2)


class Tile(NamedTuple):
    """Queries and keys of a tile, and the launch options. registers: the most that a thread has, 0 for no limit.

    tma: keys and values are read by the tensor memory accelerator, where a tile is whole.
    """

    m: int
    n: int
    num_warps: int
    num_stages: int
    registers: int = 0
    tma: bool = False

    @property
    def options(self) -> dict[str, int]:
        return {"maxnreg": self.registers} if self.registers else {}


# by kernel and kind of GPU: for up to 64, 128 and 256 channels. The last kind is for fp32 and under a softcap
_TILES: dict[tuple[str, str], tuple[Tile, Tile, Tile]] = {
    ("fwd", "hopper"): (Tile(128, 64, 8, 3, 128), Tile(128, 64, 8, 2, 128), Tile(128, 32, 8, 2)),
    ("fwd", "nvidia"): (Tile(128, 64, 4, 3), Tile(128, 32, 8, 3), Tile(64, 32, 8, 2)),
    ("fwd", "amd"): (Tile(128, 32, 4, 1), Tile(128, 32, 8, 1), Tile(64, 32, 8, 1)),
    ("fwd", "any"): (Tile(64, 32, 4, 1), Tile(64, 32, 8, 1), Tile(32, 16, 8, 1)),
    ("q", "hopper"): (Tile(128, 64, 8, 3), Tile(128, 32, 8, 2, 128), Tile(64, 32, 8, 2)),
    ("q", "nvidia"): (Tile(64, 64, 4, 2), Tile(64, 32, 8, 2), Tile(64, 32, 8, 1)),
    ("q", "amd"): (Tile(64, 32, 4, 1), Tile(64, 32, 8, 1), Tile(32, 16, 8, 1)),
    ("q", "any"): (Tile(64, 32, 8, 1), Tile(32, 32, 8, 1), Tile(16, 16, 8, 1)),
    ("kv", "hopper"): (Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), Tile(32, 64, 8, 1)),
    ("kv", "nvidia"): (Tile(64, 64, 4, 2), Tile(32, 64, 8, 2), Tile(32, 64, 8, 1)),
    ("kv", "amd"): (Tile(32, 64, 4, 1), Tile(32, 64, 8, 1), Tile(16, 32, 8, 1)),
    ("kv", "any"): (Tile(32, 64, 8, 1), Tile(32, 32, 8, 1), Tile(16, 16, 8, 1)),
}
_TILE_INTERPRETED = Tile(BLOCK_INTERPRETED, BLOCK_INTERPRETED, 4, 1)
_WIDTHS = (64, 128, 256)  # channels of a tile


def tile_of(kernel: str, kind: str, width: int) -> Tile:
    """The tile of a kernel ("fwd", "q", "kv") for heads of that width, one of _WIDTHS."""
    return _TILE_INTERPRETED if interpreted(_attention_fwd_kernel) else _TILES[kernel, kind][_WIDTHS.index(width)]


def width_of(channels: int) -> int:
    narrowest = 16 if interpreted(_attention_fwd_kernel) else _WIDTHS[0]
    return max(1 << max(channels - 1, 0).bit_length(), narrowest)


def kind_of(dtype: torch.dtype, softcap: bool, kind: str) -> str:
    """Which of the tiles are for a kind of GPU."""
    return "any" if softcap or dtype == torch.float32 else kind


def _short_shape(width: int) -> dict[str, int]:
    """What the kernels for short sequences are compiled for."""
    if interpreted(_attention_fwd_kernel):
        return {"SHORT": _SHORT_INTERPRETED, "ROWS": _SHORT_ROWS_INTERPRETED, "BLOCK": width}
    return {"SHORT": _SHORT, "ROWS": _SHORT_ROWS, "BLOCK": max(width, _SHORT_WIDTHS[0])}


def larger(dtype: torch.dtype) -> int:
    return _LARGER if dtype == torch.float16 else 0


@dataclass
class AttentionProblem:
    """One call: the tensors as the kernels read them, and its launches.

    left, right: how far a query sees, -1 for no limit.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    sinks: Tensor | None
    cu_seqlens: Tensor
    cu_keys: Tensor
    left: int
    right: int
    scale: float
    softcap: float

    def __post_init__(self) -> None:
        (self.T, self.H, self.k_channels), (self.U, self.HK, self.v_channels) = self.q.shape, self.v.shape
        self.same = self.cu_keys is self.cu_seqlens
        self.cu_seqlens = offsets("attention", self.cu_seqlens, self.T)
        self.cu_keys = self.cu_seqlens if self.same else offsets("attention", self.cu_keys, self.U)
        # scores grow with products: where they would fall, or be all the same, q is another one
        self.sign = 1.0 if self.scale > _TINY else -1.0 if self.scale < -_TINY else 0.0
        q = self.q if self.sign > 0 else self.q * self.sign
        self.factor = abs(self.scale) if self.sign else 1.0
        self.q, self.k, self.v = (self.aligned(x) for x in (q, self.k, self.v))
        self.width = width_of(max(self.k_channels, self.v_channels))
        self.kind = kind_of(q.dtype, self.softcap > 0, architecture(q.device))

    def aligned(self, tensor: Tensor) -> Tensor:
        return aligned(tensor, _MULTIPLE_INTERPRETED if interpreted(_attention_fwd_kernel) else _MULTIPLE)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """What all kernels read."""
        q, k, v, cap = self.q, self.k, self.v, self.softcap
        return {
            **{"q": q, "q_stride": q.stride(0), "q_head": q.stride(1)},
            **{"k": k, "k_stride": k.stride(0), "k_head": k.stride(1)},
            **{"v": v, "v_stride": v.stride(0), "v_head": v.stride(1)},
            **{"cu_seqlens": self.cu_seqlens, "cu_keys": self.cu_keys, "T": self.T, "U": self.U},
            **{"S": len(self.cu_seqlens) - 1, "H": self.H, "HK": self.HK, "K": q.shape[2], "V": v.shape[2]},
            **{"sinks": q if self.sinks is None else self.sinks.contiguous(), "has_sinks": int(self.sinks is not None)},
            **{"left": self.left, "right": self.right, "SOFTCAP": cap > 0, "OFFSET": larger(q.dtype)},
            "scale": cap * _LOG2_E if cap else self.factor * _LOG2_E,
            "cap_scale": self.factor / cap if cap else 0.0,
            **{"BLOCK_K": self.width, "BLOCK_V": self.width},
        }

    def _new(self, *shape: int) -> Tensor:
        return self.q.new_empty(shape)

    @property
    def short(self) -> int:
        """Queries and keys of a sequence up to which it is left to the kernels for short ones."""
        return _short_shape(self.width)["SHORT"]

    def _launch(self, kernel: Any, rows: int, others: int, heads: int, size: int, tile: Tile, **arguments: Any) -> None:
        programs = blocks.n_slots(rows, others, len(self.cu_seqlens) - 1, size, self.short) * heads
        if programs:
            shape = {"BLOCK_M": tile.m, "BLOCK_N": tile.n}
            options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages, **tile.options}
            launch(kernel, (programs,), self.arguments | arguments | shape, **options)

    def _launch_short(self, kernel: Any, rows: int, **arguments: Any) -> None:
        if rows:
            shape = _short_shape(self.width)
            arguments = self.arguments | arguments | shape
            launch(kernel, (cdiv(rows, shape["ROWS"]),), arguments, num_warps=_SHORT_WARPS)

    def _tiles(self, tensor: Tensor, tile: Tile) -> TensorDescriptor | None:
        """A descriptor of keys or values as rows of tokens, of all heads one after another."""
        (rows, heads, channels), (row, head, _) = tensor.shape, tensor.stride()
        if not tile.tma or min(rows, row, head) == 0 or not self.width == self.k.shape[2] == self.v.shape[2]:
            return None
        return TensorDescriptor(tensor, [rows, (heads - 1) * head + channels], [row, 1], [tile.n, self.width])

    def _query_blocks(self, size: int) -> Tensor:
        """Under a causal mask the last queries see most."""
        last_first = self.right >= 0
        return blocks.blocks_of(self.cu_seqlens, self.T, self.cu_keys, self.U, size, self.short, last_first=last_first)

    def forward(self, lse: Tensor) -> Tensor:
        """y (t, h, v), zero in slack; fills lse (h, t) but in slack."""
        tile = tile_of("fwd", self.kind, self.width)
        y = self._new(self.T, self.H, self.v.shape[2])
        found = self._query_blocks(tile.m)
        arguments: dict[str, Any] = {"blocks": found, "y": y, "lse": lse}
        arguments |= {"key_tiles": self._tiles(self.k, tile), "value_tiles": self._tiles(self.v, tile)}
        self._launch(_attention_fwd_kernel, self.T, self.U, self.H, tile.m, tile, **arguments)
        self._launch_short(_attention_fwd_short_kernel, self.T, y=y, lse=lse)
        zero_slack(self.cu_seqlens, y)
        return y[..., : self.v_channels].contiguous()

    def delta(self, y: Tensor, dy: Tensor, lse: Tensor, dlse: Tensor | None) -> tuple[Tensor, Tensor]:
        """delta (h, t), and the parts of the gradient of the sinks (h, t), empty without sinks."""
        delta = lse.new_empty(lse.shape)
        dsinks = lse.new_empty(lse.shape if self.sinks is not None else 0)
        dlse, has_dlse = (lse, 0) if dlse is None else (dlse, 1)
        y = self.aligned(y)
        tile = _DELTA_INTERPRETED if interpreted(_attention_fwd_kernel) else _DELTA
        arguments = {
            **{"y": y, "y_stride": y.stride(0), "y_head": y.stride(1), **_incoming(dy)},
            **{"dlse": dlse, "dlse_head": dlse.stride(0), "dlse_row": dlse.stride(1), "has_dlse": has_dlse},
            **{"lse": lse, "delta": delta, "dsinks": dsinks, **tile},
        }
        if self.T:
            programs = cdiv(self.T, tile["BLOCK_T"]) * self.H
            launch(_attention_bwd_delta_kernel, (programs,), self.arguments | arguments, num_warps=4)
        return delta, dsinks

    def backward(self, dy: Tensor, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk and dv, zero in slack."""
        dq, (dk, dv) = self.dq(dy, lse, delta), self.dk_dv(dy, lse, delta)
        if self.same:
            zero_slack(self.cu_seqlens, dq, dk, dv)
        else:
            zero_slack(self.cu_seqlens, dq)
            zero_slack(self.cu_keys, dk, dv)
        dq = dq[..., : self.k_channels]
        return (
            dq.contiguous() if self.sign > 0 else dq * self.sign,
            dk[..., : self.k_channels].contiguous(),
            dv[..., : self.v_channels].contiguous(),
        )

    def dq(self, dy: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
        tile = tile_of("q", self.kind, self.width)
        dq, found = self._new(*self.q.shape), self._query_blocks(tile.m)
        arguments = {**_incoming(dy), "lse": lse, "delta": delta, "dq": dq, "dq_factor": self.factor}
        self._launch(_attention_bwd_q_kernel, self.T, self.U, self.H, tile.m, tile, blocks=found, **arguments)
        self._launch_short(_attention_bwd_q_short_kernel, self.T, **arguments)
        return dq

    def dk_dv(self, dy: Tensor, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        tile, unit = tile_of("kv", self.kind, self.width), 2.0 ** -larger(self.q.dtype)
        dk, dv = self._new(*self.k.shape), self._new(*self.v.shape)
        found = blocks.blocks_of(self.cu_keys, self.U, self.cu_seqlens, self.T, tile.n, self.short, last_first=False)
        arguments = {**_incoming(dy), "lse": lse, "delta": delta, "dk": dk, "dv": dv}
        arguments |= {"dk_factor": self.factor * unit, "dv_factor": unit, "k_factor": self.factor}
        self._launch(_attention_bwd_kv_kernel, self.U, self.T, self.HK, tile.n, tile, blocks=found, **arguments)
        self._launch_short(_attention_bwd_kv_short_kernel, self.U, **arguments)
        return dk, dv


_TINY = 2.0**-100  # times products of fp32 this leaves nothing


def _incoming(dy: Tensor) -> dict[str, Any]:
    return {"dy": dy, "dy_stride": dy.stride(0), "dy_head": dy.stride(1)}


_TOKENS = ("q", "k", "v", "sinks", "y", "dy", "dq", "dk", "dv")
_FP32 = ("lse", "delta", "dlse", "dsinks")
_ABSENT = ("key_tiles", "value_tiles")
_INT32 = ("cu_seqlens", "cu_keys", "blocks")
_SCALARS = ("scale", "cap_scale", "dq_factor", "dk_factor", "dv_factor", "k_factor")
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
        _form(f"short-{name}-{POINTERS[dtype][1:]}-{width}", kernel, dtype, _short_shape(width), _SHORT_WARPS)
        for (name, kernel), dtype, width in product(_SHORT_KERNELS.items(), _DTYPES, _SHORT_WIDTHS)
    ]
    found += [_form(f"delta-{POINTERS[dtype][1:]}", _attention_bwd_delta_kernel, dtype, _DELTA, 4) for dtype in _DTYPES]
    return [*found, *blocks.variants(), *slack.variants(_DTYPES)]


def _forms(name: str, dtype: torch.dtype, width: int, softcap: bool) -> Iterator[Variant]:
    """One for all GPUs, or one for each kind of them."""
    kernel = _KERNELS[name]
    for kind, targets in {kind_of(dtype, softcap, kind): t for kind, t in ARCHITECTURES.items()}.items():
        tile = tile_of(name, kind, width)
        constants = {"SOFTCAP": softcap, "OFFSET": larger(dtype), "BLOCK_K": width, "BLOCK_V": width}
        constants |= {"BLOCK_M": tile.m, "BLOCK_N": tile.n}
        constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
        label = f"{kind}-{name}-{POINTERS[dtype][1:]}-{width}{'-softcap' if softcap else ''}"
        form = _form(label, kernel, dtype, constants, tile.num_warps)
        yield replace(form, num_stages=tile.num_stages, options=tile.options, targets=() if kind == "any" else targets)


def _form(label: str, kernel: Any, dtype: torch.dtype, constants: dict[str, Any], num_warps: int) -> Variant:
    types: dict[str, str | None] = dict.fromkeys(_ABSENT)
    types |= dict.fromkeys(_TOKENS, POINTERS[dtype]) | dict.fromkeys(_FP32, "*fp32")
    types |= dict.fromkeys(_INT32, "*i32") | dict.fromkeys(_SCALARS, "fp32")
    aligned_form, *_ = alignments(label, kernel, types, constants, num_warps)
    return aligned_form
