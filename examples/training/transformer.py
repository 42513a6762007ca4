"""A model as torchtitan has them: packed tokens in one row, and `cu_seqlens`, of which each layer gets a mask."""

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention


def document_mask(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """bool (tokens, tokens): causal, inside one document; with flex attention this is the function of a BlockMask."""
    document = torch.bucketize(torch.arange(tokens, device=cu_seqlens.device), cu_seqlens[1:], right=True)
    return (document[:, None] == document) & torch.ones_like(document[:, None] == document).tril()


def rotated(x: Tensor, position: Tensor) -> Tensor:
    """x (1, t, heads, d), turned by the position (t,) of each token in its document."""
    frequency = 10000.0 ** -torch.linspace(0, 1, x.shape[-1] // 2, dtype=x.dtype, device=x.device)
    angle = position[:, None, None] * frequency
    one, two = x.chunk(2, -1)
    return torch.cat([one * angle.cos() - two * angle.sin(), one * angle.sin() + two * angle.cos()], -1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor, position: Tensor) -> Tensor:
        q, k, v = self.qkv(rms_norm(x, x.shape[-1:])).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k = rotated(q, position), rotated(k, position)
        y = scaled_dot_product_attention(*(z.transpose(1, 2) for z in (q, k, v)), attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(rms_norm(x, x.shape[-1:]))


class Transformer(nn.Module):
    """tokens (1, t), cu_seqlens int32 (s + 1,) from 0 to t. Returns logits (1, t, vocabulary)."""

    def __init__(self, vocabulary: int = 64, width: int = 32, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
        t = tokens.shape[1]
        mask = document_mask(cu_seqlens, t)
        position = torch.arange(t, device=tokens.device) - cu_seqlens[:-1].repeat_interleave(cu_seqlens.diff())
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, mask, position)
        return self.output(x)
