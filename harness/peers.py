"""Kernels of others as targets, each through a small adapter to packproof's calling convention.

    packproof check packproof.harness.peers:torch_varlen_attn --device cuda --dtype bf16,fp16
    packproof bench --op causal_conv1d --against fla_causal_conv1d

They are not dependencies: what is not installed cannot be imported, and the check and the bench say so. Metadata that
their users make once a batch is made once here too, and again when the offsets are edited in place.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from packproof.harness.target import kernel
from packproof.properties.promises import Promises
from packproof.refs import seq_idx_from_cu_seqlens

T = TypeVar("T")

_prepared: dict[str, Any] = {}


@dataclass(frozen=True)
class Peer:
    """An adapter in this module. needs: the module that it imports. packed: whether it keeps sequences apart; one that
    does not is only timed."""

    name: str
    op: str
    needs: str
    packed: bool = True

    @property
    def target(self) -> str:
        return f"{__name__}:{self.name}"

    @property
    def installed(self) -> bool:
        return find_spec(self.needs) is not None


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("dao_causal_conv1d", "causal_conv1d", "causal_conv1d"),
        Peer("fla_causal_conv1d", "causal_conv1d", "fla"),
        Peer("flash_attn_rope", "rope", "flash_attn"),
        Peer("fla_rope", "rope", "fla"),
        Peer("mamba_selective_scan_unpacked", "selective_scan", "mamba_ssm", packed=False),
        Peer("mamba_ssd", "ssd", "mamba_ssm"),
        Peer("torch_varlen_attn", "attention", "torch.nn.attention.varlen"),
    )
}


def _once(what: str, cu_seqlens: Tensor, make: Callable[[], T]) -> T:
    """What `make` returns, kept for this tensor as long as nobody writes to it."""
    kept = _prepared.setdefault(what, WeakIdKeyDictionary())
    version, value = kept.get(cu_seqlens, (None, None))
    if version != cu_seqlens._version:
        value = make()
        kept[cu_seqlens] = (cu_seqlens._version, value)
    return value  # type: ignore[no-any-return]


def _longest(cu_seqlens: Tensor) -> int:
    return _once("longest", cu_seqlens, lambda: int(cu_seqlens.diff().max()) if len(cu_seqlens) > 1 else 0)


def _seq_idx(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(1, t): the sequence of each row of a batch of one pack."""
    return _once(f"seq_idx {tokens}", cu_seqlens, lambda: seq_idx_from_cu_seqlens(cu_seqlens, tokens)[None])


@kernel(op="attention", dtypes=("bfloat16", "float16"), promises=Promises(compute="operand"))
def torch_varlen_attn(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, causal: bool = False) -> Tensor:
    """torch.nn.attention.varlen: FlashAttention-2 as PyTorch ships it. One head dim for q, k and v, at least 8."""
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415  (torch 2.10 and later)

    if not q.shape[-1] == v.shape[-1] or q.shape[1] != k.shape[1]:
        raise NotImplementedError("one head dim and one number of heads for q, k and v")
    longest = _longest(cu_seqlens)
    window = (-1, 0) if causal else (-1, -1)
    result: Any = varlen_attn(q, k, v, cu_seqlens, cu_seqlens, longest, longest, window_size=window)
    return result  # type: ignore[no-any-return]


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

    seq_idx = _seq_idx(cu_seqlens, len(x))
    result: Tensor = causal_conv1d_fn(x.T.unsqueeze(0), weight, bias, seq_idx=seq_idx, activation=activation)
    return result.squeeze(0).T


@kernel(op="rope")
def flash_attn_rope(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    """flash-attn's rotary embedding in Triton, out of place."""
    from flash_attn.layers.rotary import apply_rotary_emb  # noqa: PLC0415

    longest = _longest(cu_seqlens)
    result: Tensor = apply_rotary_emb(x, cos, sin, interleaved=interleaved, cu_seqlens=cu_seqlens, max_seqlen=longest)
    return result


@kernel(op="rope")
def fla_rope(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    """flash-linear-attention's rotary embedding in Triton, which takes a batch of one pack."""
    from fla.modules.rotary import rotary_embedding  # noqa: PLC0415

    result: Tensor = rotary_embedding(x.unsqueeze(0), cos, sin, interleaved=interleaved, cu_seqlens=cu_seqlens)
    return result.squeeze(0)


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
    seq_idx = _seq_idx(cu_seqlens, x.shape[1])
    result: Tensor = mamba_chunk_scan_combined(
        x, dt, A, B, C, 256, D=D, z=z, dt_bias=dt_bias, seq_idx=seq_idx, dt_softplus=dt_softplus
    )
    return result.squeeze(0)
