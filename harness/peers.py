"""Kernels of others as targets, each through a small adapter to packproof's calling convention.

    packproof check packproof.harness.peers:fla_causal_conv1d --device cuda --dtype bf16,fp16
    packproof bench --op causal_conv1d --against fla_causal_conv1d

They are not dependencies: what is not installed cannot be imported, and the check and the bench say so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from packproof.harness.metadata import longest, once, positions, seq_idx
from packproof.harness.target import kernel
from packproof.properties.promises import Promises

_TORCH = "packproof.harness.peers_torch"


@dataclass(frozen=True)
class Peer:
    """An adapter in `module`. needs: the module that it imports. packed: whether it keeps sequences apart; one that
    does not is only timed."""

    name: str
    op: str
    needs: str
    packed: bool = True
    module: str = __name__

    @property
    def target(self) -> str:
        return f"{self.module}:{self.name}"

    @property
    def installed(self) -> bool:
        return find_spec(self.needs) is not None


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("dao_causal_conv1d", "causal_conv1d", "causal_conv1d"),
        Peer("fla_causal_conv1d", "causal_conv1d", "fla"),
        Peer("torch_compile_conv1d", "causal_conv1d", "torch", module=_TORCH),
        Peer("flash_attn_rope", "rope", "flash_attn"),
        Peer("fla_rope", "rope", "fla"),
        Peer("torch_compile_rope", "rope", "torch", module=_TORCH),
        Peer("flash_attn_rope_qk", "rope_qk", "flash_attn"),
        Peer("fla_rope_qk", "rope_qk", "fla"),
        Peer("liger_rope_qk", "rope_qk", "liger_kernel"),
        Peer("mamba_selective_scan_unpacked", "selective_scan", "mamba_ssm", packed=False),
        Peer("mamba_ssd", "ssd", "mamba_ssm"),
        Peer("flash_attn_varlen", "attention", "flash_attn"),
        Peer("torch_varlen_attn", "attention", "torch.nn.attention.varlen", module=_TORCH),
        Peer("torch_flex_attention", "attention", "torch.nn.attention.flex_attention", module=_TORCH),
    )
}


@kernel(op="causal_conv1d", promises=Promises(compute="operand"))
def fla_causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: str | None = None
) -> Tensor:
    """flash-linear-attention's short convolution in Triton, which takes a batch of one pack. Its states hold w inputs.

    The pre-activation is rounded to the dtype of x before the backward pass: hence compute="operand".
    """
    from fla.modules.causal_conv1d.ops import causal_conv1d  # noqa: PLC0415

    y, _ = causal_conv1d(x[None], weight, bias, activation=activation, backend="triton", cu_seqlens=cu_seqlens)
    result: Tensor = y.squeeze(0)  # y[0] would fill and copy a whole gradient in the backward pass
    return result


@kernel(op="causal_conv1d", slack=False)
def dao_causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: str | None = None
) -> Tensor:
    """causal-conv1d's CUDA kernel, channel-last with seq_idx; its backward pass sends gradients to slack rows."""
    from causal_conv1d import causal_conv1d_fn  # noqa: PLC0415

    sequence = seq_idx(cu_seqlens, len(x))[None]
    result: Tensor = causal_conv1d_fn(x.T.unsqueeze(0), weight, bias, seq_idx=sequence, activation=activation)
    return result.squeeze(0).T


@kernel(op="rope")
def flash_attn_rope(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    """flash-attn's rotary embedding in Triton, out of place."""
    from flash_attn.layers.rotary import apply_rotary_emb  # noqa: PLC0415

    most = longest(cu_seqlens)
    result: Tensor = apply_rotary_emb(x, cos, sin, interleaved=interleaved, cu_seqlens=cu_seqlens, max_seqlen=most)
    return result


@kernel(op="rope")
def fla_rope(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    """flash-linear-attention's rotary embedding in Triton, which takes a batch of one pack.

    Without a tensor of offsets it demands tables as long as the pack.
    """
    from fla.modules.rotary import rotary_embedding  # noqa: PLC0415

    if cos.dtype != x.dtype:
        raise NotImplementedError("tables have the dtype of x")
    start = once("no offsets", lambda: torch.zeros_like(cu_seqlens[1:]), cu_seqlens)
    result: Tensor = rotary_embedding(
        x.unsqueeze(0), cos, sin, interleaved=interleaved, seqlen_offsets=start, cu_seqlens=cu_seqlens
    )
    return result.squeeze(0)


@kernel(op="rope_qk")
def flash_attn_rope_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Two calls of flash-attn's rotary embedding, out of place."""
    return (
        flash_attn_rope(q, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved),
        flash_attn_rope(k, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved),
    )


@kernel(op="rope_qk")
def fla_rope_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Two calls of flash-linear-attention's rotary embedding."""
    return (
        fla_rope(q, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved),
        fla_rope(k, cos, sin, cu_seqlens=cu_seqlens, interleaved=interleaved),
    )


@kernel(op="rope_qk", promises=Promises(compute="operand"))
def liger_rope_qk(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """liger-kernel's rotary embedding of whole heads, over a batch of one pack with a row of the tables for each token.

    It overwrites q, k and their incoming gradients: its time holds a copy of each. The rows are gathered once a batch.
    """
    from liger_kernel.transformers.rope import liger_rotary_pos_emb  # noqa: PLC0415

    if 2 * cos.shape[1] != q.shape[2]:
        raise NotImplementedError("rotates whole heads")
    rows = once("liger rows", lambda: _rows(cos, sin, positions(cu_seqlens, len(q))), cu_seqlens, cos, sin)
    q, k = (x.clone().unsqueeze(0).transpose(1, 2) for x in (q, k))
    turned: tuple[Tensor, ...] = liger_rotary_pos_emb(q, k, *rows)
    return _returned(turned[0]), _returned(turned[1])


def _rows(cos: Tensor, sin: Tensor, position: Tensor) -> list[Tensor]:
    """(1, t, 2r) of both tables, the halves alike; zeros in slack."""
    rows = (torch.where(position[:, None] < 0, 0, x[position.clamp(min=0)]) for x in (cos, sin))
    return [torch.cat([x, x], -1).unsqueeze(0) for x in rows]


def _returned(y: Tensor) -> Tensor:
    """(t, h, k) of (1, h, t, k), the incoming gradient copied."""
    y = y.squeeze(0).transpose(0, 1)
    if y.requires_grad:
        y.register_hook(torch.clone)  # type: ignore[no-untyped-call]
    return y


@kernel(op="attention", dtypes=("bfloat16", "float16"), promises=Promises(compute="operand"), slack=False)
def flash_attn_varlen(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, causal: bool = False) -> Tensor:
    """flash-attn's attention of packed sequences. One head dim for q, k and v; slack rows are not written."""
    from flash_attn import flash_attn_varlen_func  # noqa: PLC0415

    if q.shape[-1] != v.shape[-1]:
        raise NotImplementedError("one head dim for q, k and v")
    if not len(q):
        return torch.zeros_like(q)
    offsets, most = cu_seqlens.int(), longest(cu_seqlens)
    result: Tensor = flash_attn_varlen_func(q, k, v, offsets, offsets, most, most, causal=causal)
    return result


@kernel(op="selective_scan")
def mamba_selective_scan_unpacked(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    delta_softplus: bool = False,
) -> Tensor:
    """mamba-ssm's CUDA scan over the whole pack as one sequence: not packed, and hence only timed.

    It is channel-major; its time holds the transposes to and from.
    """
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn  # noqa: PLC0415

    def channels(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.movedim(0, -1).unsqueeze(0).contiguous()

    result: Tensor = selective_scan_fn(
        channels(u), channels(delta), A, channels(B), channels(C), D, channels(z), delta_bias, delta_softplus
    )
    return result.squeeze(0).T.contiguous()


@kernel(
    op="ssd",
    dtypes=("bfloat16", "float16"),
    promises=Promises(grid="pack", chunk=256, cumsum=True, compute="operand"),
    slack=False,
)
def mamba_ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    dt_softplus: bool = False,
) -> Tensor:
    """mamba-ssm's SSD in Triton, with seq_idx over a batch of one pack, in its usual chunks of 256."""
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined  # noqa: PLC0415

    x, dt, B, C = (tensor.unsqueeze(0) for tensor in (x, dt, B, C))
    z = None if z is None else z.unsqueeze(0)
    sequence = seq_idx(cu_seqlens, x.shape[1])[None]
    result: Tensor = mamba_chunk_scan_combined(
        x, dt, A, B, C, 256, D=D, z=z, dt_bias=dt_bias, seq_idx=sequence, dt_softplus=dt_softplus
    )
    return result.squeeze(0)
