"""PyTorch's own implementations: its packed attentions, and short vectorised ops, fused by torch.compile.

The latter are compiled on a GPU only. On a CPU they run uncompiled, to be tested quickly.
"""

import ast
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from packproof.adapters.metadata import cu_seqlens_int32, max_seqlen, once, positions, seq_idx
from packproof.properties.declarations import Promises, kernel

F = TypeVar("F", bound=Callable[..., Any])

_compile = cache(torch.compile)
_BLOCK_SIZE = 128  # tokens of a block of FlexAttention's masks
_MAX_BLOCKS = 2**28  # 2 million tokens: a gigabyte for each of four lists, and a second to look at each pair of tokens
_RECOMPILE_LIMIT = 256  # shapes compiled in one process; past torch's own limit of eight it would run uncompiled


def _varlen_attn_takes(name: str) -> bool:
    """Whether the installed torch has `varlen_attn` (since 2.10) and it takes this argument.

    Its source is read: the module imports torch's compiler, for three seconds.
    """
    spec = find_spec("torch.nn.attention.varlen")
    functions = ast.parse(Path(spec.origin).read_text()).body if spec and spec.origin else []
    arguments = [f.args for f in functions if isinstance(f, ast.FunctionDef) and f.name == "varlen_attn"]
    return any(a.arg == name for args in arguments for a in (*args.args, *args.kwonlyargs))


def _compile_on_gpu(function: F, example: Tensor, *, any_size: bool = False) -> F:
    """The function, compiled if `example` is on a GPU. Inside a compiled caller it is compiled as part of it."""
    if not example.is_cuda or torch.compiler.is_compiling():
        return function
    return (_compile_any_size if any_size else _compile)(function)  # type: ignore[return-value]


@cache
def _compile_any_size(function: Callable[..., Any]) -> Callable[..., Any]:
    from torch._dynamo import config  # noqa: PLC0415

    compiled = torch.compile(function, dynamic=True)

    def run(*arguments: Any, **options: Any) -> Any:
        with config.patch(recompile_limit=_RECOMPILE_LIMIT):
            return compiled(*arguments, **options)

    return run


@kernel(
    op="attention",
    dtypes=("bfloat16", "float16"),
    promises=Promises(compute="operand"),
    domain=["k == v; k % 8 == 0; k <= 256", *([] if _varlen_attn_takes("enable_gqa") else ["hq == hk"])],
    refuses=("unexpected keyword argument", "batch size must be positive"),
    slack=False,
)
def varlen_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
) -> Tensor:
    """torch.nn.attention.varlen: FlashAttention-2 as shipped with PyTorch, with one head dim.

    The lse is not offered: it has no gradient.
    """
    from torch.nn.attention.varlen import varlen_attn as attend  # noqa: PLC0415  (torch 2.10 and later)

    keys = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    max_seqlen_q, max_seqlen_k = _longest(cu_seqlens, len(q)), _longest(keys, len(k))
    window = (window_size[0], 0) if causal else window_size
    optional_arguments: Any = {} if softmax_scale is None else {"scale": softmax_scale}  # not every version has both
    optional_arguments |= {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    offsets: Any = [once("int32", partial(cu_seqlens_int32, x, 0), x) for x in (cu_seqlens, keys)]
    result: Any = attend(
        q, k, v, offsets[0], offsets[1], max_seqlen_q, max_seqlen_k, window_size=window, **optional_arguments
    )
    return result  # type: ignore[no-any-return]


def _longest(cu_seqlens: Tensor, tokens: int) -> int:
    return once("longest", lambda: max_seqlen(cu_seqlens, tokens), cu_seqlens)


@kernel(
    op="attention",
    promises=Promises(compute="operand", compilable=True),
    refuses=("no broadcasting is currently performed", "not implemented for jagged layout"),
    domain="hq == hk; k == v; k % 8 == 0; length > 0 or (contiguous and not causal)",
    slack=False,
)
def jagged_sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    causal: bool = False,
    softmax_scale: float | None = None,
) -> Tensor:
    """scaled_dot_product_attention of jagged nested tensors.

    On a CPU, or with an empty sequence, torch uses its math backend: contiguous tensors, not causal. All other calls
    use fused backends, which read 16 bytes at a time.
    """
    use_fused_backend = q.is_cuda and once("no empty sequence", lambda: bool((cu_seqlens.diff() > 0).all()), cu_seqlens)
    if not use_fused_backend and (causal or not all(x.is_contiguous() for x in (q, k, v))):
        raise NotImplementedError(
            "on a CPU and beside empty sequences only the math backend is taken: contiguous tensors, not causal"
        )
    if use_fused_backend and not all(map(_is_aligned_to_16_bytes, (q, k, v))):
        raise NotImplementedError("rows that are not aligned to 16 bytes")

    def to_nested(x: Tensor) -> Tensor:
        rows: Tensor = torch.nested.nested_tensor_from_jagged(x, cu_seqlens)
        return rows.transpose(1, 2)

    grouped_heads = q.shape[1] != k.shape[1]
    y = functional.scaled_dot_product_attention(
        to_nested(q), to_nested(k), to_nested(v), is_causal=causal, scale=softmax_scale, enable_gqa=grouped_heads
    )
    result: Tensor = y.transpose(1, 2).values()
    return result


def _is_aligned_to_16_bytes(x: Tensor) -> bool:
    """Whether each row of channels is dense and starts at a multiple of 16 bytes."""
    misalignments = (stride * x.element_size() % 16 for stride in x.stride()[:-1])
    return x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and not any(misalignments)


@kernel(
    op="attention",
    promises=Promises(compute="operand"),
    domain="k >= 16; v >= 16",
    refuses=("No choices exist for backend",),
    slack=False,
)
def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """FlexAttention with a document mask over a batch of one pack; its block mask is made once per batch.

    A softcap is a `score_mod`. A sink enters afterwards, through the log-sum-exp. NaN in slack rows comes back in slack
    rows. On a CPU there are no gradients. One compilation serves every length. Its mask and score function capture
    tensors only, since Inductor rejects captured numbers if sizes vary.
    """
    from torch.nn.attention.flex_attention import AuxRequest  # noqa: PLC0415
    from torch.nn.attention.flex_attention import flex_attention as attend  # noqa: PLC0415

    if not len(k):
        raise NotImplementedError("a mask over no keys cannot be made")
    blocks = -(-len(q) // _BLOCK_SIZE) * -(-len(k) // _BLOCK_SIZE)
    if blocks > _MAX_BLOCKS:
        raise NotImplementedError(f"a block mask of {blocks:,} pairs of blocks; at most {_MAX_BLOCKS:,} are tried")
    with_lse = return_lse or sinks is not None
    keys = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    mask = _block_mask(cu_seqlens, len(q), keys, len(k), (window_size[0], 0) if causal else window_size)
    q_, k_, v_ = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))

    cap = torch.tensor(softcap, device=q.device)

    def softcap_score(score: Tensor, *_indices: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    compiled: Any = _compile_on_gpu(attend, q, any_size=True)
    result = compiled(
        *(q_, k_, v_),
        score_mod=softcap_score if softcap else None,
        block_mask=mask,
        scale=softmax_scale,
        enable_gqa=q.shape[1] != k.shape[1],
        **({"return_aux": AuxRequest(lse=True)} if with_lse else {}),
    )
    if not with_lse:
        return result.squeeze(0).transpose(0, 1)  # type: ignore[no-any-return]
    y, lse = (x.squeeze(0).transpose(0, 1) for x in (result[0], result[1].lse))
    if sinks is not None:
        y, lse = (y * (lse - sinks).sigmoid()[..., None]).to(y.dtype), torch.logaddexp(lse, sinks.to(lse.dtype))
    return (y, lse) if return_lse else y


def _block_mask(cu_seqlens: Tensor, tokens: int, keys: Tensor, n_keys: int, window: tuple[int, int]) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask  # noqa: PLC0415

    def make() -> Any:
        reaches = (tokens + n_keys if reach < 0 else reach for reach in window)
        left_reach, right_reach = (torch.tensor(reach, device=cu_seqlens.device) for reach in reaches)
        (sequence, position), (key_sequence, key_position) = (
            _sequence_and_position(cu_seqlens, tokens),
            _sequence_and_position(keys, n_keys),
        )

        def may_attend(_batch: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = key_position[j] - position[i]
            same_sequence = (sequence[i] == key_sequence[j]) & (sequence[i] >= 0)
            return same_sequence & (distance >= -left_reach) & (distance <= right_reach)

        create = _compile_on_gpu(create_block_mask, cu_seqlens, any_size=True)  # else it would allocate tokens x tokens
        return create(may_attend, None, None, tokens, n_keys, device=cu_seqlens.device.type)

    return once(("block mask", tokens, n_keys, window), make, cu_seqlens, keys)


def _sequence_and_position(cu_seqlens: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """The sequence of each row, and its position counted from the end of the sequence (negative)."""
    sequence: Tensor = seq_idx(cu_seqlens, tokens)
    rows = torch.arange(tokens, device=cu_seqlens.device)
    return sequence, rows - cu_seqlens[1:][sequence.long()] if tokens else rows


def _cached_positions(cu_seqlens: Tensor, tokens: int) -> Tensor:
    return once(("positions", tokens), lambda: positions(cu_seqlens, tokens), cu_seqlens)


@kernel(op="rope", float32=("cos", "sin"))
def compiled_rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    offsets: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    interleaved: bool = False,
) -> Tensor:
    """Rope with gathered rows of the tables, compiled by torch.compile."""
    if not len(cos) or len(cu_seqlens) == 1:  # no sequence has a token: the tables have no row to gather
        return torch.zeros_like(x)
    local_position = _cached_positions(cu_seqlens, len(x))
    start = torch.zeros_like(local_position) if offsets is None else _row_starts(cu_seqlens, len(x), offsets)
    return _compile_on_gpu(_rope, x)(x, cos, sin, local_position, start, interleaved)


def _row_starts(cu_seqlens: Tensor, tokens: int, offsets: Tensor) -> Tensor:
    """(t,): the start position of each row's sequence."""
    sequence: Tensor = seq_idx(cu_seqlens, tokens)
    return once(("starts", tokens), lambda: offsets[sequence.clamp(min=0)], cu_seqlens, offsets)


def _rope(x: Tensor, cos: Tensor, sin: Tensor, local_position: Tensor, start: Tensor, interleaved: bool) -> Tensor:
    compute_dtype, r = torch.promote_types(x.dtype, torch.float32), cos.shape[1]
    is_token, position = (local_position >= 0)[:, None, None], local_position + start
    is_rotated = (position >= 0)[:, None]
    row = torch.where(local_position >= 0, position, 0).clamp(min=0)
    c, s = (
        torch.where(is_rotated, t[row].to(compute_dtype), identity)[:, None] for t, identity in ((cos, 1), (sin, 0))
    )
    x = torch.where(is_token, x, 0)
    x_rotary, unrotated = x[..., : 2 * r].to(compute_dtype), x[..., 2 * r :]
    x1, x2 = (x_rotary[..., ::2], x_rotary[..., 1::2]) if interleaved else (x_rotary[..., :r], x_rotary[..., r:])
    pairs = torch.stack([x1 * c - x2 * s, x1 * s + x2 * c], -1 if interleaved else -2)
    return torch.where(is_token, torch.cat([pairs.flatten(-2).to(x.dtype), unrotated], -1), 0)


@kernel(op="causal_conv1d", float32=("weight", "bias"))
def compiled_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: str | None = None
) -> Tensor:
    """The convolution as a sum over its taps, compiled by torch.compile."""
    return _compile_on_gpu(_conv1d, x)(x, weight, bias, _cached_positions(cu_seqlens, len(x)), activation)


def _conv1d(x: Tensor, weight: Tensor, bias: Tensor | None, position: Tensor, activation: str | None) -> Tensor:
    compute_dtype, w, local_position = torch.promote_types(x.dtype, torch.float32), weight.shape[1], position[:, None]
    padded = functional.pad(torch.where(local_position >= 0, x, 0).to(compute_dtype), (0, 0, w - 1, 0))
    y = torch.zeros_like(x, dtype=compute_dtype) if bias is None else bias.to(compute_dtype)
    for tap in range(w):
        lag = w - 1 - tap
        y = y + torch.where(local_position >= lag, padded[tap : tap + len(x)], 0) * weight[:, tap].to(compute_dtype)
    y = functional.silu(y) if activation == "silu" else y
    return torch.where(local_position >= 0, y, 0).to(x.dtype)


@kernel(op="grouped_mm", dtypes=("bfloat16", "float16", "float32"), domain=["d % 8 == 0; f % 8 == 0"], slack=False)
def grouped_mm(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """torch.nn.functional.grouped_mm, since 2.10: CUTLASS on Hopper for bf16, a loop over groups elsewhere.

    Rows start at multiples of 16 bytes.
    """
    return functional.grouped_mm(x, weight, offs=cu_seqlens_int32(cu_seqlens, len(x))[1:])
