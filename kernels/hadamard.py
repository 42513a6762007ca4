"""Hadamard's transform of each head of each token, with signs, in Triton. The gradient is the transform, then the
signs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from itertools import product
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from packproof.base.arguments import bind, empty_output
from packproof.base.errors import ArgumentError, checked_call
from packproof.base.signatures import HADAMARD, Signature
from packproof.kernels.butterflies import count_thread_stages, tile_width, transform_across_tiles, transform_within_tile
from packproof.kernels.launch import (
    POINTERS,
    ROW_WISE_PROMISES,
    align_rows,
    cdiv,
    is_on_host,
    launch,
    require_device,
    require_dtype,
    runs_interpreted,
    specializations,
)
from packproof.kernels.operators import differentiable, fake, operator, refuse_gradient
from packproof.kernels.sequences import offsets
from packproof.kernels.variant import Variant
from packproof.refs.rotary_options import check_power_of_two

PROMISES = ROW_WISE_PROMISES
INTERPRETED: dict[str, Any] = {}

MAX_CHANNELS = 256
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ELEMENTS, _ELEMENTS_INTERPRETED = 4096, 64  # of a program
_MAX_ROWS = 64
_WIDTH_INTERPRETED = 4
_UNIT = 16  # elements: wider heads start at multiples of it, so a kernel needs one compiled form
_NUM_WARPS = 4


@checked_call
def hadamard(x: Tensor, signs: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
    """(x ⊙ signs) H / √k along the last axis, with Sylvester's matrix H. Norms and scalar products stay the same.

    x: (t, h, k) in fp32, bf16 or fp16, computed in fp32. k is a power of two up to 256.
    signs: (k,), each 1 or -1, for example from `packproof.refs.random_signs`, in x's dtype or fp32; they get no
    gradient.
    cu_seqlens: int32 or int64 (s + 1,).

    Returns y (t, h, k) in x's dtype, zero in slack. No token's bits depend on another token. Nothing waits for a GPU,
    so the values of cu_seqlens are not checked there. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.kernels import hadamard
    >>> x = torch.tensor([[[8.0, 0, 0, 0]], [[2, 2, 2, 2]]])  # on a CPU with TRITON_INTERPRET=1
    >>> hadamard(x, cu_seqlens=torch.tensor([0, 1, 2])).flatten(1)
    tensor([[4., 4., 4., 4.],
            [4., 0., 0., 0.]])
    """
    if not torch.compiler.is_compiling():
        _bind(x, signs, cu_seqlens, values=is_on_host(x))
        require_device(HADAMARD.op, x, _hadamard_kernel)
    result: Tensor = _hadamard(x, signs, cu_seqlens, False)
    return result


@triton.jit(do_not_specialize=["cu_seqlens", "T", "S", "H", "x_stride", "head_stride", "has_signs", "inverse"])
def _hadamard_kernel(
    x, signs, cu_seqlens, y, T, S, H, x_stride, head_stride, has_signs, inverse,
    K: tl.constexpr, UNIT: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr, OWN: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS heads of tokens, one after another, in tiles of WIDTH channels. Strides count UNIT elements.

    inverse: multiply by the signs after the transform, not before it.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    t, h = row // H, row % H
    end = tl.minimum(tl.load(cu_seqlens + S), T)
    channel = tl.arange(0, WIDTH)
    read_mask = tl.broadcast_to((t < end)[:, None], (ROWS, WIDTH))
    write_mask = tl.broadcast_to((t < T)[:, None], (ROWS, WIDTH))
    source = x + ((t * x_stride + h * head_stride) * UNIT)[:, None]
    tiles = ()
    for u in tl.static_range(K // WIDTH):
        columns = (u * WIDTH + channel)[None, :]
        # scaled before the sums, so none overflows unless its result does
        tile = tl.load(source + columns, mask=read_mask, other=0.0).to(tl.float32) * (K**-0.5)
        factor = tl.load(signs + columns, mask=(columns < K) & (has_signs != 0) & (inverse == 0), other=1.0)
        tiles += (tile * factor,)
    tiles = transform_across_tiles(tiles, K // WIDTH)
    for u in tl.static_range(K // WIDTH):
        columns = (u * WIDTH + channel)[None, :]
        factor = tl.load(signs + columns, mask=(columns < K) & (has_signs != 0) & (inverse != 0), other=1.0)
        values = (transform_within_tile(tiles[u], STAGES, OWN) * factor).to(y.dtype.element_ty)
        tl.store(y + (row * K)[:, None] + columns, values, mask=write_mask)


def bind_transform(
    signature: Signature, x: Tensor, cu_seqlens: Tensor, *, values: bool, **other_inputs: Any
) -> dict[str, int]:
    """The sizes of a call. Raises ArgumentError for heads that the kernels cannot transform."""
    sizes = bind(signature, cu_seqlens, x=x, values=values, **other_inputs)
    require_dtype(signature.op, "x", x, DTYPES)
    check_power_of_two(signature.op, "x", sizes["k"])
    if sizes["k"] > MAX_CHANNELS:
        raise ArgumentError(
            f"{signature.op}: x has {sizes['k']} channels per head (axis k) but at most {MAX_CHANNELS} were expected\n"
            f"    packproof.refs.{signature.op} has no limit."
        )
    return sizes


def _bind(x: Tensor, signs: Tensor | None, cu_seqlens: Tensor, *, values: bool) -> dict[str, int]:
    return bind_transform(HADAMARD, x, cu_seqlens, signs=signs, values=values)


def _tile(K: int, dtype: torch.dtype) -> dict[str, int]:
    elements, channels = _ELEMENTS, min(tile_width(dtype.itemsize), K)
    thread_stages = count_thread_stages(channels, dtype.itemsize)
    if runs_interpreted(_hadamard_kernel):
        elements, channels, thread_stages = _ELEMENTS_INTERPRETED, min(_WIDTH_INTERPRETED, K), 1
    tile = {"WIDTH": channels, "STAGES": channels.bit_length() - 1, "OWN": thread_stages}
    return {"K": K, "UNIT": _UNIT if K >= _UNIT else 1, **tile, "ROWS": min(max(elements // K, 2), _MAX_ROWS)}


def _align_vector(tensor: Tensor) -> Tensor:
    """The tensor itself if it starts at a multiple of 16 bytes, as vector loads need, otherwise a copy."""
    return tensor if not tensor.is_cuda or tensor.data_ptr() % 16 == 0 else tensor.clone()


def factors_of(signs: Tensor) -> Tensor:
    return _align_vector(signs.float().contiguous())


def launch_hadamard(op: str, x: Tensor, signs: Tensor | None, cu_seqlens: Tensor, inverse: bool) -> Tensor:
    (T, H, K), S = x.shape, len(cu_seqlens) - 1
    y, tile = x.new_empty(x.shape), _tile(K, x.dtype)
    x = _align_vector(align_rows(x, tile["UNIT"]))
    if programs := cdiv(T * H, tile["ROWS"]):
        factors = x.new_empty(0, dtype=torch.float32) if signs is None else factors_of(signs)
        arguments = {
            **{"x": x, "signs": factors, "cu_seqlens": offsets(op, cu_seqlens, T), "y": y, "T": T, "S": S},
            **{"H": H, "x_stride": x.stride(0) // tile["UNIT"], "head_stride": x.stride(1) // tile["UNIT"]},
            **{"has_signs": int(signs is not None), "inverse": int(inverse), **tile},
        }
        launch(_hadamard_kernel, (programs,), arguments, num_warps=_NUM_WARPS)
    return y


@operator
def _hadamard(x: Tensor, signs: Tensor | None, cu_seqlens: Tensor, inverse: bool) -> Tensor:
    return launch_hadamard(HADAMARD.op, x, signs, cu_seqlens, inverse)


@fake(_hadamard)
def _(x, signs, cu_seqlens, inverse):
    return empty_output(HADAMARD, "y", x, _bind(x, signs, cu_seqlens, values=False))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, signs, cu_seqlens, ctx.inverse = inputs
    refuse_gradient(HADAMARD.op, signs=ctx.needs_input_grad[1])
    ctx.save_for_backward(signs, cu_seqlens)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    return _hadamard(dy, *ctx.saved_tensors, not ctx.inverse), None, None, None


differentiable(_hadamard, _backward, _save)


def variants() -> list[Variant]:
    """Every compiled form of the kernel: dtypes and head dims."""
    result = []
    for dtype, stages in product(DTYPES, range(MAX_CHANNELS.bit_length())):
        pointers = {"x": POINTERS[dtype], "y": POINTERS[dtype], "signs": "*fp32", "cu_seqlens": "*i32"}
        label = f"hadamard-{POINTERS[dtype][1:]}-{2**stages}"
        result += specializations(label, _hadamard_kernel, pointers, _tile(2**stages, dtype), _NUM_WARPS)[:1]
    return result
