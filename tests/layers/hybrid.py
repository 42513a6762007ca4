"""A hybrid of Mamba-2 and attention, as small as chunks of the interpreted kernels allow."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from packproof import kernels
from packproof.layers import AttentionBlock, Mamba2Block

WIDTH, VOCABULARY = 4, 16
Told = Callable[[Tensor], Tensor]


def as_it_came(cu_seqlens: Tensor) -> Tensor:
    return cu_seqlens


def one_document(cu_seqlens: Tensor) -> Tensor:
    return cu_seqlens[[0, -1]]


class Hybrid(nn.Module):
    """ids (1, t) and cu_seqlens to logits (1, t, VOCABULARY). told: the boundaries that each mixer gets."""

    def __init__(self, ops: Any = kernels, told: tuple[Told, Told] = (as_it_came, as_it_came)) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in told)
        mamba2 = Mamba2Block(WIDTH, d_state=2, headdim=4, ngroups=2, ops=ops)
        self.mixers = nn.ModuleList([mamba2, AttentionBlock(WIDTH, 2, 1, rotary_emb_dim=2, ops=ops)])
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self._told = told

    def forward(self, input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        x = self.embedding(input_ids[0])
        for norm, mixer, told in zip(self.norms, self.mixers, self._told, strict=True):
            x = x + mixer(norm(x), cu_seqlens=told(cu_seqlens))
        return self.head(x)[None]


def boundaries_dropped_in_attention(ops: Any = kernels) -> Hybrid:
    return Hybrid(ops, (as_it_came, one_document))


def with_rotated_keys(ops: Any, told: Told) -> Hybrid:
    """Positions of keys as `told` has it, while those of queries restart: that both run on changes no score."""

    def rope_qk(q: Tensor, k: Tensor, *tables: Tensor, cu_seqlens: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
        turned, _ = ops.rope_qk(q, k, *tables, cu_seqlens=cu_seqlens, interleaved=interleaved)
        return turned, ops.rope_qk(k, k, *tables, cu_seqlens=told(cu_seqlens), interleaved=interleaved)[1]

    names = ("causal_conv1d", "ssd", "attention")
    return Hybrid(SimpleNamespace(**{name: getattr(ops, name) for name in names}, rope_qk=rope_qk))
