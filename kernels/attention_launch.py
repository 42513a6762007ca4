"""From tensors to launches of the attention kernels: alignment, scales, and the order of the kernels."""

# mypy: allow-untyped-calls

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

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
from packproof.kernels.attention_tiles import (
    DELTA_WARPS,
    SHORT_OPTIONS,
    SHORT_WARPS,
    Tile,
    channels_of_product,
    delta_shape,
    few_keys,
    kind_of,
    multiple,
    short_shape,
    tile_of,
    weight_exponent,
    width_of,
)
from packproof.kernels.launch import align_rows, architecture, cdiv, launch
from packproof.kernels.sequences import offsets

_LOG2_E = 1 / math.log(2)
_TINY = 2.0**-100  # a smaller scale is taken for 0: its products vanish in fp32


@dataclass
class AttentionProblem:
    """One call: the tensors as the kernels read them, and its launches."""

    q: Tensor
    k: Tensor
    v: Tensor
    sinks: Tensor | None
    cu_seqlens: Tensor
    cu_keys: Tensor
    window_left: int
    """How far a query sees to the left, -1 for no limit."""
    window_right: int
    """How far a query sees to the right, -1 for no limit."""
    scale: float
    softcap: float

    def __post_init__(self) -> None:
        (self.T, self.H, self.k_channels), (self.U, self.HK, self.v_channels) = self.q.shape, self.v.shape
        same_offsets = self.cu_keys is self.cu_seqlens
        self.cu_seqlens = offsets("attention", self.cu_seqlens, self.T)
        self.cu_keys = self.cu_seqlens if same_offsets else offsets("attention", self.cu_keys, self.U)
        # the kernels take the largest product for the largest score: a scale below 0 flips the sign of q, 0 makes q 0
        self.sign = 1.0 if self.scale > _TINY else -1.0 if self.scale < -_TINY else 0.0
        q = self.q if self.sign > 0 else self.q * self.sign
        self.factor = abs(self.scale) if self.sign else 1.0
        self.q, self.k, self.v = (self.align(x) for x in (q, self.k, self.v))
        self.width = width_of(max(self.k_channels, self.v_channels))
        self.architecture = architecture(q.device)

    def align(self, tensor: Tensor) -> Tensor:
        return align_rows(tensor, multiple())

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments common to all kernels."""
        q, k, v, cap = self.q, self.k, self.v, self.softcap
        return {
            **{"q": q, "q_stride": q.stride(0), "q_head": q.stride(1)},
            **{"k": k, "k_stride": k.stride(0), "k_head": k.stride(1)},
            **{"v": v, "v_stride": v.stride(0), "v_head": v.stride(1)},
            **{"cu_seqlens": self.cu_seqlens, "cu_keys": self.cu_keys, "T": self.T, "U": self.U},
            **{"S": len(self.cu_seqlens) - 1, "H": self.H, "HK": self.HK, "K": q.shape[2], "V": v.shape[2]},
            **{"sinks": q if self.sinks is None else self.sinks.contiguous(), "has_sinks": int(self.sinks is not None)},
            **{
                "left": self.window_left,
                "right": self.window_right,
                "SOFTCAP": cap > 0,
                "OFFSET": weight_exponent(q.dtype),
            },
            "scale": cap * _LOG2_E if cap else self.factor * _LOG2_E,
            "cap_scale": self.factor / cap if cap else 0.0,
            **{"BLOCK_K": self.width, "BLOCK_V": self.width},
            "CHANNELS": channels_of_product(),
        }

    def _new(self, *shape: int) -> Tensor:
        return self.q.new_empty(shape)

    def _tile(self, kernel: str) -> Tile:
        return tile_of(kernel, kind_of(kernel, self.q.dtype, self.softcap > 0, self.architecture), self.width)

    @property
    def short(self) -> int:
        """The largest number of queries and keys of a sequence that the kernels for short ones take."""
        return short_shape(self.width)["SHORT"]

    def _launch(
        self, kernel: Any, n_rows: int, n_others: int, heads: int, size: int, tile: Tile, **arguments: Any
    ) -> None:
        n_sequences = len(self.cu_seqlens) - 1
        items = blocks.n_slots(n_rows, n_others, n_sequences, size, self.short) * heads
        programs = blocks.n_programs(items, n_rows, n_sequences, size) if tile.several else items
        if items:
            shape = {"BLOCK_M": tile.m, "BLOCK_N": tile.n, "SEVERAL": programs < items}
            options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages, **tile.options}
            launch(kernel, (programs,), self.arguments | arguments | shape, **options)

    def _launch_short(self, kernel: Any, rows: int, **arguments: Any) -> None:
        if rows:
            shape = short_shape(self.width)
            arguments = self.arguments | arguments | shape
            launch(kernel, (cdiv(rows, shape["ROWS"]),), arguments, num_warps=SHORT_WARPS, **SHORT_OPTIONS)

    def _descriptors(self, tile: Tile, size: int, **tensors: Tensor) -> dict[str, TensorDescriptor | None]:
        """Descriptors of tensors as rows of tokens, all heads of a token in one row, for tiles of `size` rows."""
        descriptor_tensors = {f"{name}_tiles": tensor for name, tensor in tensors.items()}
        fits = all(x.shape[2] == self.width and x.numel() and min(x.stride()[:2]) > 0 for x in tensors.values())
        if not (tile.tma and fits):
            return dict.fromkeys(descriptor_tensors)
        return {
            name: TensorDescriptor(
                *(x, [len(x), (x.shape[1] - 1) * x.stride(1) + self.width], [x.stride(0), 1], [size, self.width])
            )
            for name, x in descriptor_tensors.items()
        }

    def _query_blocks(self, size: int) -> dict[str, Any]:
        """The blocks of queries, in reverse under a causal mask: the last queries see most."""
        reverse = self.window_right >= 0
        return _block_arguments(
            blocks.list_blocks(self.cu_seqlens, self.T, self.cu_keys, self.U, size, self.short, reverse=reverse)
        )

    def forward(self, lse: Tensor) -> Tensor:
        """y (t, h, v), zero in slack. Fills lse (h, t) except in slack."""
        tile = self._tile("fwd")
        y = self._new(self.T, self.H, self.v.shape[2])
        arguments = {"y": y, "lse": lse, "few": few_keys(tile, self.window_left, self.window_right)}
        arguments |= self._descriptors(tile, tile.n, k=self.k, v=self.v) | self._query_blocks(tile.m)
        self._launch(_attention_fwd_kernel, self.T, self.U, self.H, tile.m, tile, **arguments)
        self._launch_short(_attention_fwd_short_kernel, self.T, **arguments)
        return y[..., : self.v_channels].contiguous()

    def delta(self, y: Tensor, dy: Tensor, lse: Tensor, dlse: Tensor | None) -> tuple[Tensor, Tensor]:
        """delta (h, t), and the gradient of the sinks by query (h, t), empty without sinks."""
        delta = lse.new_empty(lse.shape)
        dsinks = lse.new_empty(lse.shape if self.sinks is not None else 0)
        dlse, has_dlse = (lse, 0) if dlse is None else (dlse, 1)
        y = self.align(y)
        tile = delta_shape()
        arguments = {
            **{"y": y, "y_stride": y.stride(0), "y_head": y.stride(1), **_dy_arguments(dy)},
            **{"dlse": dlse, "dlse_head": dlse.stride(0), "dlse_row": dlse.stride(1), "has_dlse": has_dlse},
            **{"lse": lse, "delta": delta, "dsinks": dsinks, **tile},
        }
        if self.T:
            programs = cdiv(self.T, tile["BLOCK_T"]) * self.H
            launch(_attention_bwd_delta_kernel, (programs,), self.arguments | arguments, num_warps=DELTA_WARPS)
        return delta, dsinks

    def backward(self, dy: Tensor, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk and dv, zero in slack."""
        dq, (dk, dv) = self.dq(dy, lse, delta), self.dk_dv(dy, lse, delta)
        dq = dq[..., : self.k_channels]
        return (
            dq.contiguous() if self.sign > 0 else dq * self.sign,
            dk[..., : self.k_channels].contiguous(),
            dv[..., : self.v_channels].contiguous(),
        )

    def dq(self, dy: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
        tile = self._tile("q")
        dq = self._new(*self.q.shape)
        arguments = {**_dy_arguments(dy), "lse": lse, "delta": delta, "dq": dq, "dq_factor": self.factor}
        arguments |= self._descriptors(tile, tile.n, k=self.k, v=self.v) | self._query_blocks(tile.m)
        self._launch(_attention_bwd_q_kernel, self.T, self.U, self.H, tile.m, tile, **arguments)
        self._launch_short(_attention_bwd_q_short_kernel, self.T, **arguments)
        return dq

    def dk_dv(self, dy: Tensor, lse: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        tile, weight_unit = self._tile("kv"), 2.0 ** -weight_exponent(self.q.dtype)
        dk, dv = self._new(*self.k.shape), self._new(*self.v.shape)
        key_blocks = blocks.list_blocks(
            self.cu_keys, self.U, self.cu_seqlens, self.T, tile.n, self.short, reverse=False
        )
        arguments = _dy_arguments(dy) | _block_arguments(key_blocks) | {"lse": lse, "delta": delta, "dk": dk, "dv": dv}
        arguments |= {"dk_factor": self.factor * weight_unit, "dv_factor": weight_unit, "k_factor": self.factor}
        arguments |= self._descriptors(tile, tile.m, q=self.q, dy=dy)
        self._launch(_attention_bwd_kv_kernel, self.U, self.T, self.HK, tile.n, tile, **arguments)
        self._launch_short(_attention_bwd_kv_short_kernel, self.U, **arguments)
        return dk, dv


def _block_arguments(block_list: blocks.Blocks) -> dict[str, Any]:
    return {"blocks": block_list.items, "unlisted": block_list.unlisted}


def _dy_arguments(dy: Tensor) -> dict[str, Any]:
    return {"dy": dy, "dy_stride": dy.stride(0), "dy_head": dy.stride(1)}
