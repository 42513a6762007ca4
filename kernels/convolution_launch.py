"""From a call of causal_conv1d to launches of its kernels: in Triton or in CUDA C++, and their compiled forms."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from math import gcd
from typing import Any

import torch
import triton
from torch import Tensor

from packproof.kernels import cuda
from packproof.kernels.convolution_backward import (
    causal_conv1d_bwd_pre_kernel,
    causal_conv1d_bwd_states_kernel,
    causal_conv1d_bwd_weight_kernel,
    causal_conv1d_bwd_x_kernel,
)
from packproof.kernels.convolution_forward import causal_conv1d_fwd_kernel, causal_conv1d_fwd_states_kernel
from packproof.kernels.launch import POINTERS, alignments, rows, working
from packproof.kernels.sequences import offsets
from packproof.kernels.variant import Variant

OP = "causal_conv1d"

_BLOCK_T = 32  # tokens, rows of states, or parts of sums
_TENSORS = ("x", "weight", "bias", "y", "final_states", "dy", "dfinal", "dx", "dstates", "dweight", "dbias")
_SOURCE = "convolution.cu"
_TOKEN = {torch.float32: "FP32", torch.bfloat16: "BF16", torch.float16: "FP16"}
_WIDTHS = range(2, 5)
_LOAD = 16  # bytes of a thread's widest load
# of a walk in CUDA C++: threads of a block, tokens of a window, rows under way, and the most channels of a thread
_WALK = {"THREADS": 128, "WINDOW": 128, "FORWARD_ROWS": 8, "BACKWARD_ROWS": 8}
_CHANNELS = {"FORWARD_CHANNELS": 8, "BACKWARD_CHANNELS": 4}
_BLOCKS = {"FORWARD_BLOCKS": 4, "BACKWARD_BLOCKS": 4}  # on a multiprocessor, for which registers must suffice


def refusal(x: Tensor, weight: Tensor) -> str:
    """Why the kernels in CUDA C++ cannot run, "" if they can."""
    if x.dtype not in _TOKEN:
        return f"x is {str(x.dtype).removeprefix('torch.')} and it computes in float32"
    if weight.shape[1] not in _WIDTHS:
        return f"weight has {weight.shape[1]} taps and it takes {_WIDTHS[0]} to {_WIDTHS[-1]}"
    return cuda.missing(x.device)


def problem(native: bool, *arguments: Any) -> "Problem":
    return NativeProblem(*arguments) if native else Problem(*arguments)


def _tiling(kernel: Any, dtype: torch.dtype) -> tuple[int, int]:
    """Channels of a tile, and the warps that share it: the most that a thread holds without spilling."""
    if kernel in (causal_conv1d_fwd_states_kernel, causal_conv1d_bwd_states_kernel):
        return 32, 8
    return {torch.float64: (16, 4), torch.float32: (64, 8)}.get(dtype, (64, 4))


class Problem:
    """One call in Triton: the tensors as the kernels read them. An absent bias is any tensor of its dtype, unread."""

    def __init__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None,
        silu: bool,
    ) -> None:  # fmt: skip
        (self.T, self.D), self.W, self.S = x.shape, weight.shape[1], len(cu_seqlens) - 1
        self.x, self.weight, self.has_bias, self.silu = rows(x), weight.contiguous(), int(bias is not None), int(silu)
        self.bias = self.weight if bias is None else bias.contiguous()
        self.states = None if initial_states is None else initial_states.contiguous()
        self.cu_seqlens = offsets(OP, cu_seqlens, self.T)
        self.sizes = (self.T, self.S, self.D, self.W)

    def launch(self, kernel: Any, n_rows: int, *arguments: Any, rows_in_block: int = _BLOCK_T) -> None:
        """Run a kernel over all blocks of rows and channels."""
        block_d, num_warps = _tiling(kernel, self.x.dtype)
        blocks = triton.cdiv(n_rows, rows_in_block) * triton.cdiv(self.D, block_d)
        if blocks:
            with torch.cuda.device_of(self.x):
                kernel[(blocks,)](*arguments, _BLOCK_T, block_d, num_warps=num_warps)

    def outputs(self) -> Tensor:
        y = self.x.new_empty(self.T, self.D)
        self.launch(
            causal_conv1d_fwd_kernel, self.T, self.x, self.weight, self.bias, self.states, self.cu_seqlens, y,
            *self.sizes, self.x.stride(0), self.has_bias, self.silu,
        )  # fmt: skip
        return y

    def final_states(self) -> Tensor:
        final_states = self.x.new_empty(self.S, self.D, self.W - 1)
        self.launch(
            causal_conv1d_fwd_states_kernel, self.S * (self.W - 1), self.x, self.states, self.cu_seqlens, final_states,
            *self.sizes, self.x.stride(0),
        )  # fmt: skip
        return final_states

    def gradients(self, dy: Tensor, dfinal: Tensor | None, needs_dx: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of x (empty unless needed), weight, bias and initial states (empty if there are none)."""
        dy, has_final = rows(dy), int(dfinal is not None)
        dfinal = self.weight if dfinal is None else dfinal.contiguous()
        g = self.x.new_empty(self.T * self.silu, self.D, dtype=working(self.x.dtype))
        partial = self.parts(triton.cdiv(self.T, _BLOCK_T))
        self.launch(
            causal_conv1d_bwd_pre_kernel, self.T, self.x, self.weight, self.bias, self.states, self.cu_seqlens, dy, g,
            partial, *self.sizes, self.x.stride(0), dy.stride(0), self.has_bias, self.silu,
        )  # fmt: skip
        g = g if self.silu else dy
        sizes = (*self.sizes, g.stride(0), has_final)
        dx = self.x.new_empty((self.T, self.D) if needs_dx else 0)
        if needs_dx:
            self.launch(causal_conv1d_bwd_x_kernel, self.T, g, self.weight, dfinal, self.cu_seqlens, dx, *sizes)
        dstates = self.x.new_empty(0 if self.states is None else self.states.shape)
        if self.states is not None:
            self.launch(
                causal_conv1d_bwd_states_kernel, self.S * (self.W - 1), g, self.weight, dfinal, self.cu_seqlens,
                dstates, *sizes,
            )  # fmt: skip
        return dx, *self.sums(partial), dstates

    def parts(self, count: int) -> Tensor:
        """Parts of the gradients of weight and, last, of the bias."""
        return self.x.new_empty(count, self.W + 1, self.D, dtype=working(self.x.dtype))

    def sums(self, partial: Tensor) -> tuple[Tensor, Tensor]:
        dweight, dbias = self.x.new_empty(self.D, self.W), self.x.new_empty(self.D)
        self.launch(
            causal_conv1d_bwd_weight_kernel, self.W + 1, partial, dweight, dbias, len(partial), self.D, self.W,
            rows_in_block=1,
        )  # fmt: skip
        return dweight, dbias


class NativeProblem(Problem):
    """One call in CUDA C++. Its states are rows too: (s, w-1, d)."""

    def outputs(self) -> Tensor:
        y, initial, has_initial = self.x.new_empty(self.T, self.D), *self.by_slot(self.states)
        arguments = {
            **{"x": self.x, "weight": self.weight, "bias": self.bias, "initial": initial},
            **{"cu_seqlens": self.cu_seqlens, "y": y, "T": self.T, "S": self.S, "D": self.D},
            **{"x_stride": self.x.stride(0), "has_bias": self.has_bias, "has_initial": has_initial},
        }
        self.walk("FORWARD_CHANNELS", "causal_conv1d_fwd_kernel", arguments)
        return y

    def gradients(self, dy: Tensor, dfinal: Tensor | None, needs_dx: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dy, (initial, has_initial), (final, has_final) = rows(dy), self.by_slot(self.states), self.by_slot(dfinal)
        dx = self.x.new_empty((self.T, self.D) if needs_dx else 0)
        partial = self.parts(triton.cdiv(self.T, _WALK["WINDOW"]))
        # an empty sequence passes its gradient through, and no walk sees it
        dinitial = final.clone() if has_final else torch.zeros_like(initial)
        arguments = {
            **{"x": self.x, "weight": self.weight, "bias": self.bias, "initial": initial, "dy": dy, "dfinal": final},
            **{"cu_seqlens": self.cu_seqlens, "dx": dx, "dinitial": dinitial, "partial": partial},
            **{"T": self.T, "S": self.S, "D": self.D, "x_stride": self.x.stride(0), "dy_stride": dy.stride(0)},
            **{"has_bias": self.has_bias, "has_initial": has_initial, "has_final": has_final, "needs_dx": needs_dx},
        }
        self.walk("BACKWARD_CHANNELS", "causal_conv1d_bwd_kernel", arguments)
        dstates = dinitial.transpose(1, 2).contiguous() if has_initial else self.x.new_empty(0)
        return dx, *self.sums(partial), dstates

    def by_slot(self, states: Tensor | None) -> tuple[Tensor, int]:
        """States as the walks read them, and whether there are any."""
        return (self.weight, 0) if states is None else (states.transpose(1, 2).contiguous(), 1)

    def walk(self, kind: str, kernel: str, arguments: dict[str, Any]) -> None:
        """Run a kernel over all windows and blocks of channels, with loads as wide as every row is aligned."""
        tensors = [x for x in arguments.values() if isinstance(x, Tensor) and x.dtype == self.x.dtype and x.numel()]
        strides = [arguments[name] for name in ("x_stride", "dy_stride") if name in arguments]
        size = self.x.dtype.itemsize
        aligned = gcd(_LOAD, *(x.data_ptr() for x in tensors), *(size * n for n in (self.D, *strides))) // size
        channels = {name: min(aligned, most) for name, most in _CHANNELS.items()}
        values = {"TOKEN": _TOKEN[self.x.dtype], "WIDTH": self.W, "SILU": self.silu, **_WALK, **_BLOCKS, **channels}
        programs = triton.cdiv(self.T, _WALK["WINDOW"]) * triton.cdiv(self.D, _WALK["THREADS"] * channels[kind])
        if programs:
            kernels = cuda.kernels(_SOURCE, self.x.device, tuple((name, str(value)) for name, value in values.items()))
            kernels.launch(kernel, programs, _WALK["THREADS"], 0, arguments)


def variants() -> list[Variant]:
    """Every compiled form of the kernels: dtypes, initial states or not, operands aligned to 16 bytes or not."""
    found = []
    for dtype, kind in POINTERS.items():
        wide = POINTERS[working(dtype)]
        forms: list[tuple[str, Any, dict[str, str | None]]] = [
            ("bwd_weight", causal_conv1d_bwd_weight_kernel, {"partial": wide})
        ]
        for states in (kind, None):
            forms += [
                ("fwd", causal_conv1d_fwd_kernel, {"states": states}),
                ("fwd_states", causal_conv1d_fwd_states_kernel, {"states": states}),
                ("bwd_pre", causal_conv1d_bwd_pre_kernel, {"states": states, "g": wide, "partial": wide}),
            ]
        for g in dict.fromkeys((kind, wide)):
            forms += [
                ("bwd_x", causal_conv1d_bwd_x_kernel, {"g": g}),
                ("bwd_states", causal_conv1d_bwd_states_kernel, {"g": g}),
            ]
        for name, kernel, types in forms:
            pointers = {**dict.fromkeys(_TENSORS, kind), "cu_seqlens": "*i32", **types}
            parts = [name, kind, *(f"{argument}:{type_}" for argument, type_ in types.items())]
            label = "-".join(parts).replace("*", "")
            block_d, num_warps = _tiling(kernel, dtype)
            found += alignments(label, kernel, pointers, {"BLOCK_T": _BLOCK_T, "BLOCK_D": block_d}, num_warps)
    return found
