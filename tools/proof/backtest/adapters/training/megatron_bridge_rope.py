"""Megatron-Bridge: the rotary embedding of Qwen3-VL's mixture of experts, cast as its model is."""

import torch
from torch import Tensor

from packproof import refs
from packproof.proof.backtest.adapters.training.megatron_bridge_batches import without_megatron
from packproof.properties.declarations import kernel
from packproof.properties.ops import Op


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    """x (t, h, 2 r) by angles (t, r): the second half is turned with the first."""
    cos, sin = (f(angles)[:, None].repeat(1, 1, 2) for f in (torch.cos, torch.sin))
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _at_positions(x: Tensor, frequencies: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Each token is turned by its position in its sequence times the frequencies; rows past the last one are 0."""
    n = int(cu_seqlens[-1])
    positions = refs.position_ids_from_cu_seqlens(cu_seqlens, len(x))[:n]
    turned = _rotated(x[:n], positions[:, None] * frequencies)
    return torch.cat([turned, 0 * x[n:]])


ROTATION = Op(
    name="rotation",
    reference=_at_positions,
    inputs={"x": "t h k", "frequencies": "r"},
    outputs={"y": "t h k"},
    sizes=({"h": 2, "k": 8, "r": 4}, {"h": 1, "k": 16, "r": 8}),
    draws={"frequencies": "unit"},
    constants=frozenset({"frequencies"}),
)


@kernel(op=ROTATION, domain=("2 * r == k", "r >= 3"), slack=False)
def qwen3_vl(x: Tensor, frequencies: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """With these frequencies in place of those of a configuration, and each position on all three axes."""
    without_megatron()
    from megatron.bridge.models.qwen_vl.modelling_qwen3_vl import rope  # noqa: PLC0415
    from transformers import Qwen3VLMoeTextConfig  # noqa: PLC0415

    r = len(frequencies)
    sections = [r - 2 * (r // 3), r // 3, r // 3]
    config = Qwen3VLMoeTextConfig(head_dim=2 * r, rope_scaling={"rope_type": "default", "mrope_section": sections})
    embedding = rope.Qwen3VLMoETextRotaryEmbedding(config).to(x.dtype)
    embedding.inv_freq = frequencies
    positions = refs.position_ids_from_cu_seqlens(cu_seqlens, len(x)).long()
    angles = embedding(positions.expand(3, 1, -1), sections)[:, 0, 0, :r]
    return _rotated(x.float(), angles).to(x.dtype)
