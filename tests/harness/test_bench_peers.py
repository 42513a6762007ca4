"""The adapters of peers, each before a stand-in with the peer's calling convention and the reference's mathematics."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import packproof
from packproof import refs
from packproof.harness import peers
from packproof.harness.bench.layouts import Layout
from packproof.harness.bench.settings import setting
from packproof.harness.bench.timing import Run, Tensors
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


class LigerRope(torch.autograd.Function):
    """q, k: (1, h, t, k), overwritten, and so are their incoming gradients; cos, sin: (1, t, k), a row a token."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        assert cos.shape == sin.shape == (1, q.shape[2], q.shape[3])
        ctx.save_for_backward(cos, sin)
        return LigerRope.turned(q, cos, sin), LigerRope.turned(k, cos, sin)

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return LigerRope.turned(dq, cos, -sin), LigerRope.turned(dk, cos, -sin), None, None

    @staticmethod
    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[3] // 2
        rotated = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x.data.copy_(x * cos[:, None] + rotated * sin[:, None])


def liger_rotary_pos_emb(*tensors: Tensor) -> Any:
    return LigerRope.apply(*tensors)  # type: ignore[no-untyped-call]


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, ends: Tensor, *most: int, causal: bool
) -> Any:
    """q, k, v: (t, h, k)."""
    assert most == (LAYOUT.longest, LAYOUT.longest)
    assert starts is ends
    return refs.attention(q, k, v, cu_seqlens=starts, causal=causal)


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, *, seqlen_offsets: Tensor, **said: Any) -> Tensor:
    """x: (1, t, h, k). Without offsets the tables would have to be as long as the pack."""
    assert not seqlen_offsets.any()
    assert len(seqlen_offsets) == len(LAYOUT.lengths)
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
    ("flash_attn_rope_qk", "flash_attn.layers.rotary", apply_rotary_emb),
    ("fla_rope_qk", "fla.modules.rotary", rotary_embedding),
    ("liger_rope_qk", "liger_kernel.transformers.rope", liger_rotary_pos_emb),
    ("flash_attn_varlen", "flash_attn", flash_attn_varlen_func),
    ("mamba_selective_scan_unpacked", "mamba_ssm.ops.selective_scan_interface", selective_scan_fn),
    ("mamba_ssd", "mamba_ssm.ops.triton.ssd_combined", mamba_chunk_scan_combined),
]


def install(module: str, function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the function importable from that module."""
    stand_in = ModuleType(module)
    setattr(stand_in, function.__name__.removeprefix("fla_"), function)
    parents = module.split(".")[:-1]
    for n in range(len(parents)):
        monkeypatch.setitem(sys.modules, ".".join(parents[: n + 1]), ModuleType(parents[n]))
    monkeypatch.setitem(sys.modules, module, stand_in)


@pytest.mark.parametrize(("name", "module", "function"), STAND_INS, ids=[name for name, *_ in STAND_INS])
def test_an_adapter_speaks_both_conventions(
    name: str, module: str, function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(module, function, monkeypatch)
    peer = peers.PEERS[name]
    op = OPS[peer.op]
    layout = LAYOUT if peer.packed else Layout("one", (9,))
    sample = setting(op, "cpu", {}, None).sample(op, layout, "float32", 0)
    arguments = {**sample.inputs, "cu_seqlens": sample.cu_seqlens, **sample.options}
    got, want = getattr(peers, name)(**arguments), op.reference(**arguments)
    for x, y in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True):
        assert x.equal(y)


def test_a_peer_that_overwrites_gets_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    install("liger_kernel.transformers.rope", liger_rotary_pos_emb, monkeypatch)
    op = OPS["rope_qk"]
    sample = setting(op, "cpu", {}, None).sample(op, LAYOUT, "float32", 0)
    run = Run(peers.liger_rope_qk, Tensors.of(sample, "cpu"), gradients=True)
    other = Run(refs.rope_qk, Tensors.of(replace(sample, cotangents=clones(sample.cotangents)), "cpu"), gradients=True)
    before = clones(sample.inputs | sample.cotangents)
    for x, y in zip(run.backward(run.forward()), other.backward(other.forward()), strict=True):
        assert x is not None
        assert y is not None
        torch.testing.assert_close(x, y)
    for name, x in (sample.inputs | sample.cotangents).items():
        assert x.equal(before[name]), name


def clones(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in tensors.items()}


@pytest.mark.parametrize("name", ["torch_compile_rope", "torch_compile_conv1d"])
def test_what_is_compiled_on_a_gpu_is_proven_here_as_it_is_written(name: str) -> None:
    packproof.check(peers.PEERS[name].target, device="cpu", profile="quick")


def test_a_document_mask_is_proven_here_without_gradients() -> None:
    target = peers.PEERS["torch_flex_attention"].target
    properties = ["reference", "packing"]
    packproof.check(target, device="cpu", dtypes=["float32"], properties=properties, profile="quick", forward_only=True)


def test_every_peer_is_an_adapter_of_its_op() -> None:
    for peer in peers.PEERS.values():
        assert import_module(peer.module).__dict__[peer.name].__packproof__["op"] == peer.op
