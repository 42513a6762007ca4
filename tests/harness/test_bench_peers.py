"""The adapters of peers, each before a stand-in with the peer's calling convention and the reference's mathematics."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.harness import peers
from packproof.harness.bench.layouts import Layout
from packproof.harness.bench.settings import setting
from packproof.properties.ops import OPS

LAYOUT = Layout("mixed", (3, 0, 5, 1))


def offsets(seq_idx: Tensor) -> Tensor:
    """cu_seqlens of the sequences that are not empty, from a batch of one."""
    assert seq_idx.shape[0] == 1
    assert seq_idx.dtype == torch.int32
    counts = seq_idx[0].unique_consecutive(return_counts=True)[1]
    return torch.tensor([0, *counts.cumsum(0).tolist()])


def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Tensor | None, *, seq_idx: Tensor, activation: str) -> Tensor:
    """x: (1, d, t), channel-last."""
    assert x.stride(1) == 1
    y = refs.causal_conv1d(x[0].T, weight, bias, cu_seqlens=offsets(seq_idx), activation=activation)
    assert isinstance(y, Tensor)
    return y.T[None]


def fla_causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor, *, cu_seqlens: Tensor, **said: str) -> Any:
    """x: (1, t, d). Returns the output and the final states."""
    y = refs.causal_conv1d(x[0], weight, bias, cu_seqlens=cu_seqlens, activation=said["activation"])
    assert isinstance(y, Tensor)
    return y[None], None


def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor, *, max_seqlen: int, **said: Any) -> Tensor:
    """x: (t, h, k)."""
    assert max_seqlen == LAYOUT.longest
    return refs.rope(x, cos, sin, **said)


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, **said: Any) -> Tensor:
    """x: (1, t, h, k)."""
    return refs.rope(x[0], cos, sin, **said)[None]


def selective_scan_fn(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, *rest: Any) -> Tensor:
    """u, delta, z: (1, d, t), B and C: (1, n, t), contiguous; D, z, delta_bias and delta_softplus follow."""
    D, z, delta_bias, softplus = rest
    assert all(x.is_contiguous() for x in (u, delta, B, C, z))
    u, delta, B, C, z = (x[0].T.contiguous() for x in (u, delta, B, C, z))
    one = torch.tensor([0, len(u)])
    y = refs.selective_scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus=softplus, cu_seqlens=one)
    assert isinstance(y, Tensor)
    return y.T[None]


def mamba_chunk_scan_combined(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk: int, *, seq_idx: Tensor, **said: Any
) -> Tensor:
    """x: (1, t, h, p), and the others likewise."""
    assert chunk == 256
    y = refs.ssd(x[0], dt[0], A, B[0], C[0], cu_seqlens=offsets(seq_idx), **said)
    assert isinstance(y, Tensor)
    return y[None]


STAND_INS: list[tuple[str, str, Callable[..., Any]]] = [
    ("dao_causal_conv1d", "causal_conv1d", causal_conv1d_fn),
    ("fla_causal_conv1d", "fla.modules.causal_conv1d.ops", fla_causal_conv1d),
    ("flash_attn_rope", "flash_attn.layers.rotary", apply_rotary_emb),
    ("fla_rope", "fla.modules.rotary", rotary_embedding),
    ("mamba_selective_scan_unpacked", "mamba_ssm.ops.selective_scan_interface", selective_scan_fn),
    ("mamba_ssd", "mamba_ssm.ops.triton.ssd_combined", mamba_chunk_scan_combined),
]


@pytest.mark.parametrize(("name", "module", "function"), STAND_INS, ids=[name for name, *_ in STAND_INS])
def test_an_adapter_speaks_both_conventions(
    name: str, module: str, function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = ModuleType(module)
    setattr(stand_in, function.__name__.removeprefix("fla_"), function)
    parents = module.split(".")[:-1]
    for n in range(len(parents)):
        monkeypatch.setitem(sys.modules, ".".join(parents[: n + 1]), ModuleType(parents[n]))
    monkeypatch.setitem(sys.modules, module, stand_in)
    peer = peers.PEERS[name]
    op = OPS[peer.op]
    layout = LAYOUT if peer.packed else Layout("one", (9,))
    sample = setting(op, "cpu", {}, None).sample(op, layout, "float32", 0)
    arguments = {**sample.inputs, "cu_seqlens": sample.cu_seqlens, **sample.options}
    assert getattr(peers, name)(**arguments).equal(op.reference(**arguments))


def test_every_peer_is_an_adapter_of_its_op() -> None:
    for peer in peers.PEERS.values():
        assert getattr(peers, peer.name).__packproof__["op"] == peer.op
