"""Long or short RoPE factors (ggml-org/llama.cpp#24875, what it leaves open).

The incorrect model chooses them by the largest position of the whole pack.
"""

import torch
from torch import nn
from torch.nn import functional


class Correct(nn.Module):
    """A causal language model of one attention layer; factors by the length of each document."""

    limit = 8  # original_max_position_embeddings
    by_document = True

    def __init__(self, vocab=32, d=16):
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(vocab, d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.head = nn.Linear(d, vocab, bias=False)

    def _rotated(self, x, positions, longest):
        half = x.shape[-1] // 2
        base = 10000.0 ** (-torch.arange(half, device=x.device) / half)
        angle = positions[:, None] * base / torch.where(longest > self.limit, 4.0, 1.0)[:, None]
        a, b = x.chunk(2, -1)
        c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        return torch.cat([a * c - b * s, a * s + b * c], -1)

    def forward(self, input_ids, cu_seqlens):
        t = input_ids.shape[-1]
        rows = torch.arange(t, device=input_ids.device)
        document = torch.bucketize(rows, cu_seqlens.long(), right=True) - 1
        lengths = torch.cat([cu_seqlens.diff(), cu_seqlens.new_ones(1)])
        positions = rows - torch.cat([cu_seqlens[:-1], cu_seqlens[-1:]])[document]
        longest = lengths[document] if self.by_document else positions.max().expand(t) + 1
        h = self.embed(input_ids)
        q, k, v = self.qkv(h).chunk(3, -1)
        q, k = (self._rotated(x, positions, longest) for x in (q, k))
        mask = (document[:, None] == document) & (rows[:, None] >= rows)
        h = h + self.out(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[None]))
        return {"logits": self.head(h)}


class Incorrect(Correct):
    by_document = False
