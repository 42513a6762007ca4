"""From a call of causal_conv1d to launches of its kernels: in Triton or in CUDA C++, and their compiled forms."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from collections.abc import Sequence
from functools import cache
from math import gcd
from typing import Any, NamedTuple

import torch
from torch import Tensor

from packproof.kernels import cuda
from packproof.kernels.causal_conv1d_bwd import (
    _causal_conv1d_bwd_pre_activation_kernel,
    _causal_conv1d_bwd_states_kernel,
    _causal_conv1d_bwd_weight_kernel,
    _causal_conv1d_bwd_x_kernel,
)
from packproof.kernels.causal_conv1d_fwd import _causal_conv1d_fwd_kernel, _causal_conv1d_fwd_states_kernel
from packproof.kernels.launch import POINTERS, cdiv, compute_dtype, contiguous_rows, launch, specializations
from packproof.kernels.sequences import offsets
from packproof.kernels.variant import Variant

OP = "causal_conv1d"

_BLOCK_T = 32  # tokens, rows of states, or parts of sums
_TENSORS = ("x", "weight", "bias", "y", "final_states", "dy", "dfinal", "dx", "dstates", "dweight", "dbias")
_PARAMETERS = ("weight", "bias", "dweight", "dbias", "dstates")
_SOURCE = "causal_conv1d.cu"
_WIDTHS = range(2, 5)
_LOAD = 16  # bytes of a thread's widest load
_ROW_BYTES = 2**32  # limit of the distance of two rows
_WINDOWS = {"FORWARD": 128, "BACKWARD": 256}  # tokens; halved, down to the shortest, while programs are few
_SHORTEST, _FEW = 32, 1024
_CHANNELS = {"FORWARD": 4, "BACKWARD": 8}  # of a thread, at most
_THREADS = 128  # of a block
# rows in flight; blocks of a multiprocessor for which registers must suffice
_CONSTANTS = {"FORWARD_ROWS": 16, "BACKWARD_ROWS": 8, "FORWARD_BLOCKS": 6, "BACKWARD_BLOCKS": 2}
_FEW_TOKENS = 3  # of a sequence, on average: below that, a thread checks at each token whether a sequence begins
_SHORT = {"BACKWARD": 4}, {"BACKWARD_BLOCKS": 5}  # channels and constants that differ then


def refusal(x: Tensor, weight: Tensor, initial_states: Tensor | None) -> str:
    """Why the kernels in CUDA C++ cannot run, "" if they can."""
    if initial_states is not None and initial_states.dtype != x.dtype:
        short = (str(tensor.dtype).removeprefix("torch.") for tensor in (initial_states, x))
        return "initial_states is {} and x is {}".format(*short)
    if x.dtype not in cuda.TOKENS:
        return f"x is {str(x.dtype).removeprefix('torch.')} and it computes in float32"
    if weight.shape[1] not in _WIDTHS:
        return f"weight has {weight.shape[1]} taps and it takes {_WIDTHS[0]} to {_WIDTHS[-1]}"
    if x.shape[1] * x.dtype.itemsize >= _ROW_BYTES:
        return f"x has {x.shape[1]} channels"
    return cuda.missing_requirement(x.device)


def _with_32_bit_strides(tensor: Tensor) -> Tensor:
    """The tensor itself if its last axis is dense and its rows are less than 2^32 bytes apart, otherwise a contiguous
    copy.
    """
    return contiguous_rows(tensor) if tensor.stride(0) * tensor.dtype.itemsize < _ROW_BYTES else tensor.contiguous()


@cache
def _macros(
    dtype: torch.dtype, parameter: torch.dtype, width: int, silu: int, channels: int, short: bool
) -> cuda.Macros:
    """The macros of the source in CUDA C++.

    parameter: dtype of the filter.
    channels: of a thread, at most.
    """
    max_channels, constants = _tuning(short)
    sizes = {f"{direction}_CHANNELS": min(channels, n) for direction, n in max_channels.items()}
    form = {"TOKEN": cuda.TOKENS[dtype], "WIDTH": width, "SILU": silu, "THREADS": _THREADS, "SHORT": int(short)}
    form["FILTER"] = cuda.TOKENS[parameter]
    macros = {**form, "WINDOW": max(_WINDOWS.values()), **constants, **sizes}
    return tuple((name, str(value)) for name, value in macros.items())


def _tuning(short: bool) -> tuple[dict[str, int], dict[str, int]]:
    """The maximum number of channels of a thread by direction, and the constants."""
    return (_CHANNELS | _SHORT[0], _CONSTANTS | _SHORT[1]) if short else (_CHANNELS, _CONSTANTS)


def problem(native: bool, *arguments: Any) -> "ConvolutionProblem":
    return NativeProblem(*arguments) if native else ConvolutionProblem(*arguments)


def _tiling(kernel: Any, dtype: torch.dtype) -> tuple[int, int]:
    """Channels of a tile, and its warps: as many channels as a thread holds without spilling."""
    if kernel in (_causal_conv1d_fwd_states_kernel, _causal_conv1d_bwd_states_kernel):
        return 32, 8
    return {torch.float64: (16, 4), torch.float32: (64, 8)}.get(dtype, (64, 4))


class _Walks(NamedTuple):
    """A launch in which each program walks along a window of tokens and each thread takes adjacent channels."""

    channels: int
    window: int
    programs: int
    short: bool
    """The form for short sequences. It gives the same bits."""


class ConvolutionProblem:
    """One call in Triton: the tensors as the kernels read them. An absent bias is any tensor of its dtype, unread.

    Where a parameter or the states are fp32 beside an x of 16 bits, the kernels read all of them, and write their
    gradients, as fp32.
    """

    widens_states = True

    def __init__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor, initial_states: Tensor | None,
        silu: bool,
    ) -> None:  # fmt: skip
        (self.T, self.D), self.W, self.S = x.shape, weight.shape[1], len(cu_seqlens) - 1
        self.x, self.has_bias, self.silu = contiguous_rows(x), int(bias is not None), int(silu)
        bias = weight if bias is None else bias
        states = [] if initial_states is None else [initial_states]
        self.parameter_dtypes = [p.dtype for p in (weight, bias, *states)]
        wide = x.dtype if self.parameter_dtypes == [x.dtype] * len(self.parameter_dtypes) else compute_dtype(x.dtype)
        self.weight, self.bias = (p.to(wide).contiguous() for p in (weight, bias))
        self.states = next((p.to(wide if self.widens_states else p.dtype).contiguous() for p in states), None)
        self.cu_seqlens = offsets(OP, cu_seqlens, self.T)
        self.sizes = {"T": self.T, "S": self.S, "D": self.D, "W": self.W}

    def launch(self, kernel: Any, n_rows: int, *, rows_in_block: int = _BLOCK_T, **arguments: Any) -> None:
        """Run a kernel over all blocks of rows and channels."""
        tokens = kernel is not _causal_conv1d_bwd_weight_kernel
        block_d, num_warps = _tiling(kernel, self.x.dtype if tokens else self.weight.dtype)
        blocks = cdiv(n_rows, rows_in_block) * cdiv(self.D, block_d)
        if blocks:
            arguments["BLOCK_T"], arguments["BLOCK_D"] = _BLOCK_T, block_d
            launch(kernel, (blocks,), arguments, num_warps=num_warps)

    def outputs(self) -> Tensor:
        y = self.x.new_empty(self.T, self.D)
        self.launch(
            _causal_conv1d_fwd_kernel, self.T, x=self.x, weight=self.weight, bias=self.bias, states=self.states,
            cu_seqlens=self.cu_seqlens, y=y, **self.sizes, x_stride=self.x.stride(0), has_bias=self.has_bias,
            silu=self.silu,
        )  # fmt: skip
        return y

    def final_states(self) -> Tensor:
        final_states = self.x.new_empty(self.S, self.D, self.W - 1)
        self.launch(
            _causal_conv1d_fwd_states_kernel, self.S * (self.W - 1), x=self.x, states=self.states,
            cu_seqlens=self.cu_seqlens, final_states=final_states, **self.sizes, x_stride=self.x.stride(0),
        )  # fmt: skip
        return final_states

    def gradients(self, dy: Tensor, dfinal: Tensor | None, needs_dx: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients of x (empty unless needed), weight, bias and initial states (empty without them)."""
        dy, has_final = contiguous_rows(dy), int(dfinal is not None)
        dfinal = dy if dfinal is None else dfinal.contiguous()
        g = self.x.new_empty(self.T * self.silu, self.D, dtype=compute_dtype(self.x.dtype))
        partial = self.parts(cdiv(self.T, _BLOCK_T))
        self.launch(
            _causal_conv1d_bwd_pre_activation_kernel, self.T, x=self.x, weight=self.weight, bias=self.bias,
            states=self.states, cu_seqlens=self.cu_seqlens, dy=dy, g=g, partial=partial, **self.sizes,
            x_stride=self.x.stride(0), dy_stride=dy.stride(0), has_bias=self.has_bias, silu=self.silu,
        )  # fmt: skip
        g = g if self.silu else dy
        incoming: dict[str, Any] = {
            **{"g": g, "g_stride": g.stride(0), "weight": self.weight, "dfinal": dfinal, "has_final": has_final},
            **{"cu_seqlens": self.cu_seqlens, **self.sizes},
        }
        dx = self.x.new_empty((self.T, self.D) if needs_dx else 0)
        if needs_dx:
            self.launch(_causal_conv1d_bwd_x_kernel, self.T, **incoming, dx=dx)
        dstates = self.weight.new_empty(0 if self.states is None else self.states.shape)
        if self.states is not None:
            self.launch(_causal_conv1d_bwd_states_kernel, self.S * (self.W - 1), **incoming, dstates=dstates)
        return dx, *self.sums(partial), dstates.to(self.parameter_dtypes[-1])

    def parts(self, count: int) -> Tensor:
        """Parts of the gradients of weight and, last, of the bias."""
        return self.x.new_empty(count, self.W + 1, self.D, dtype=compute_dtype(self.x.dtype))

    def sums(self, partial: Tensor) -> tuple[Tensor, Tensor]:
        dweight, dbias = self.weight.new_empty(self.D, self.W), self.weight.new_empty(self.D)
        self.launch(
            _causal_conv1d_bwd_weight_kernel, self.W + 1, partial=partial, dweight=dweight, dbias=dbias,
            n_tiles=len(partial), D=self.D, W=self.W, rows_in_block=1,
        )  # fmt: skip
        return dweight.to(self.parameter_dtypes[0]), dbias.to(self.parameter_dtypes[1])


class NativeProblem(ConvolutionProblem):
    """One call in CUDA C++. Its states are rows too: (s, w-1, d), in the dtype of x."""

    widens_states = False

    def outputs(self) -> Tensor:
        x, y, (initial, has_initial) = (
            _with_32_bit_strides(self.x),
            self.x.new_empty(self.T, self.D),
            self.states_by_slot(self.states),
        )
        self.walk(
            "_causal_conv1d_fwd_kernel", self.walks("FORWARD", [x], [initial]),
            x=x, initial=initial, y=y, x_stride=x.stride(0), has_initial=has_initial,
        )  # fmt: skip
        return y

    def gradients(self, dy: Tensor, dfinal: Tensor | None, needs_dx: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, dy, (initial, has_initial), (final, has_final) = (
            *(_with_32_bit_strides(self.x), _with_32_bit_strides(dy)),
            *(self.states_by_slot(self.states), self.states_by_slot(dfinal)),
        )
        dx = self.x.new_empty((self.T, self.D) if needs_dx else 0)
        # an empty sequence passes its gradient through, and no thread reaches it
        dinitial = initial if not has_initial else final.clone() if has_final else torch.zeros_like(initial)
        walks = self.walks("BACKWARD", [x, dy], [initial, final])
        partial = self.parts(cdiv(self.T, walks.window))
        self.walk(
            "_causal_conv1d_bwd_kernel", walks, x=x, initial=initial, dy=dy, dfinal=final, dx=dx, dinitial=dinitial,
            partial=partial, x_stride=x.stride(0), dy_stride=dy.stride(0), has_initial=has_initial,
            has_final=has_final, needs_dx=needs_dx,
        )  # fmt: skip
        dstates = dinitial.transpose(1, 2).contiguous() if has_initial else self.x.new_empty(0)
        return dx, *self.sums(partial), dstates

    def states_by_slot(self, states: Tensor | None) -> tuple[Tensor, int]:
        """States as the kernels in CUDA C++ read them, and whether there are any."""
        return (self.weight, 0) if states is None else (states.transpose(1, 2).contiguous(), 1)

    def walks(self, direction: str, matrices: Sequence[Tensor], states: Sequence[Tensor]) -> _Walks:
        """A thread takes as many channels as one aligned load reads. Windows are long while programs stay many."""
        size, tensors = self.x.dtype.itemsize, (self.weight, self.bias, *matrices, *states)
        strides = (size * n for n in (self.D, *(x.stride(0) for x in matrices)))
        aligned_channels = gcd(_LOAD, *(x.data_ptr() for x in tensors), *strides) // size
        short = all(x is self.weight for x in states) and self.S * _FEW_TOKENS > self.T
        window, blocks = (
            _WINDOWS[direction],
            cdiv(self.D, _THREADS * min(aligned_channels, _tuning(short)[0][direction])),
        )
        while window > _SHORTEST and cdiv(self.T, window) * blocks < _FEW:
            window //= 2
        return _Walks(aligned_channels, window, cdiv(self.T, window) * blocks, short)

    def walk(self, kernel: str, walks: _Walks, **arguments: Any) -> None:
        if not walks.programs:
            return
        shared = {"weight": self.weight, "bias": self.bias, "has_bias": self.has_bias, "cu_seqlens": self.cu_seqlens}
        sizes = {"T": self.T, "S": self.S, "D": self.D, "window": walks.window}
        macros = _macros(self.x.dtype, self.weight.dtype, self.W, self.silu, walks.channels, walks.short)
        kernels = cuda.kernels(_SOURCE, self.x.device, macros)
        kernels.launch(kernel, walks.programs, _THREADS, 0, {**arguments, **shared, **sizes})


def variants() -> list[Variant]:
    """Every compiled form of the kernels: dtypes, initial states or not, operands aligned to 16 bytes or not."""
    result = []
    for dtype, kind in POINTERS.items():
        for parameters in dict.fromkeys((kind, POINTERS[compute_dtype(dtype)])):
            fixed = {**dict.fromkeys(_TENSORS, kind), **dict.fromkeys(_PARAMETERS, parameters), "cu_seqlens": "*i32"}
            for name, kernel, types in _forms(kind, parameters, POINTERS[compute_dtype(dtype)]):
                parts = [name, kind, *(f"{argument}:{type_}" for argument, type_ in types.items())]
                label = "-".join([*parts, *(["fp32"] if parameters != kind else [])]).replace("*", "")
                block_d, num_warps = _tiling(kernel, dtype)
                constants = {"BLOCK_T": _BLOCK_T, "BLOCK_D": block_d}
                result += specializations(label, kernel, {**fixed, **types}, constants, num_warps)
    return result


def _forms(kind: str, parameters: str, wide: str) -> list[tuple[str, Any, dict[str, str | None]]]:
    """The kernels and the types that decide their forms, for tokens and parameters of the given types."""
    forms: list[tuple[str, Any, dict[str, str | None]]] = []
    if parameters == kind:  # else fp32 has it
        forms.append(("bwd_weight", _causal_conv1d_bwd_weight_kernel, {"partial": wide}))
    for states in (parameters, None):
        forms.append(("fwd", _causal_conv1d_fwd_kernel, {"states": states}))
        if states or parameters == kind:
            forms.append(("fwd_states", _causal_conv1d_fwd_states_kernel, {"states": states}))
        types = {"states": states, "g": wide, "partial": wide}
        forms.append(("bwd_pre_activation", _causal_conv1d_bwd_pre_activation_kernel, types))
    for g in dict.fromkeys((kind, wide)):
        forms.append(("bwd_x", _causal_conv1d_bwd_x_kernel, {"g": g}))
        forms.append(("bwd_states", _causal_conv1d_bwd_states_kernel, {"g": g}))
    return forms
