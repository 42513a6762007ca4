"""What a user writes, over the whole public API: tests/test_packaging.py has mypy read it, and copies with a typo."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import packproof
from packproof import PackLayout, Promises, Property, Verdict, adapters, kernels, layers, refs
from packproof.properties.laws.violation import Violation

layout: PackLayout = PackLayout.from_lengths([3, 0, 5], slack=2)
cu_seqlens: Tensor = layout.cu_seqlens(dtype=torch.int64)
packs: list[tuple[refs.Piece, ...]] = refs.pack_best_fit(layout.lengths, capacity=8)
padding: float = refs.padding_rate(packs, 8)
packed, same = packproof.pack([torch.ones(3, 4), torch.ones(5, 4)], slack=2)
pieces: list[Tensor] = packproof.unpack(packed, same)
promises = Promises(grid="sequence", chunk=64, deterministic=True)
domain: packproof.Domain = packproof.Domain.of("n <= 256; length > 0")
failures: list[type[packproof.PackproofError]] = [packproof.ArgumentError, packproof.LayoutError, packproof.UsageError]


def reference(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, final: bool) -> Tensor:
    y: Tensor = refs.ssd(x, dt, A, B, B, cu_seqlens=cu_seqlens)
    y, states = refs.ssd_chunked(x, dt, A, B, B, cu_seqlens=cu_seqlens, chunk=32, return_final_states=True)
    either: Tensor | tuple[Tensor, Tensor] = refs.ssd_quadratic(
        x, dt, A, B, B, cu_seqlens=cu_seqlens, return_final_states=final
    )
    parts: refs.SsdIntermediates = refs.ssd_intermediates(x, dt, A, B, B, cu_seqlens=cu_seqlens)
    state: Tensor = refs.ssd_state(x, dt, A, B, cu_seqlens=cu_seqlens, token=7)
    h, last = refs.ssd_step(state, x[0], dt[0], A, B[0], B[0])
    z: Tensor = refs.selective_scan_associative(x[:, 0], dt, A, B[:, 0], B[:, 0], cu_seqlens=cu_seqlens)
    z, last = refs.causal_conv1d(z, A, cu_seqlens=cu_seqlens, activation="silu", return_final_states=True)
    rotated: Tensor = refs.rope(refs.attention(z, z, x, cu_seqlens=cu_seqlens), A, last, cu_seqlens=cu_seqlens)
    return (
        y + rotated + parts.off_diagonal + packproof.magnitude(h) + (either if isinstance(either, Tensor) else states)
    )


def on_a_gpu(x: Tensor, dt: Tensor, A: Tensor, B: Tensor) -> Tensor:
    y: Tensor = kernels.ssd(x, dt, A, B, B, cu_seqlens=cu_seqlens)
    z, states = packproof.kernels.selective_scan(x, dt, A, B, B, cu_seqlens=cu_seqlens, return_final_states=True)
    y = kernels.causal_conv1d(y, A, cu_seqlens=cu_seqlens, initial_states=states, impl="triton")
    q, k = kernels.rope_qk(x, z, A, A, cu_seqlens=cu_seqlens)
    y = kernels.linear_attention(q, k, y, cu_seqlens=cu_seqlens) + kernels.retention(q, k, y, A, cu_seqlens=cu_seqlens)
    y, states = kernels.simple_gla(q, k, y, dt, cu_seqlens=cu_seqlens, scale=1.0, return_final_states=True)
    return y + q + k + kernels.rope(x, A, A, cu_seqlens=cu_seqlens)


@packproof.kernel(op="ssd", promises=promises, domain="n <= 256")
def mine(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return refs.ssd(x, dt, A, B, C, cu_seqlens=cu_seqlens)


block: torch.nn.Module = layers.Mamba2Block(64, headdim=16, ops=refs, recompute=True)
attention: torch.nn.Module = layers.AttentionBlock(64, 4, 2, rotary_emb_dim=8, sliding_window=16, ops=refs)
exact: Tensor = layers.mamba2_reference(block.state_dict(), packed, cu_seqlens=cu_seqlens)


def no_law(kernel: object, case: packproof.Case) -> Iterator[Violation]:
    yield from ()


doubled = packproof.Op("doubled", lambda x, *, cu_seqlens: 2 * x, inputs={"x": "t d"}, outputs={"y": "t d"})
law = Property("no_law", "What always holds.", no_law)
batched = adapters.adapt("my_kernels:ssd", op="ssd", tokens=adapters.Batched(), metadata={"seq_idx": adapters.seq_idx})
try:
    verdicts: tuple[Verdict, ...] = packproof.check(mine, op="ssd", properties=[law, "packing"], promises=promises)
except packproof.CheckFailed as failed:
    smallest = [verdict.failure.lengths for verdict in failed.verdicts if verdict.failure is not None]
outcome: packproof.ReplayOutcome = packproof.replay(Path("replay.json"), device="cpu")
where: packproof.Diff = packproof.diff(mine, case=[3, 0, 5], op="ssd")
inputs: dict[str, Tensor] = {"x": packed}
packproof.gradcheck(mine, inputs, cu_seqlens=cu_seqlens, op=doubled)
packproof.dot_product_test(torch.sin, packed)
print(packproof.__version__, outcome.status, where.divergences[0].token, refs.segsum(packed).shape)
