"""A small llama as transformers runs it with sdpa, and one of three rotary axes, as its Qwen2-VL family.

The mask is causal inside the documents that positions show by their restarts, but only without a cache and without
another mask. Other arguments arrive in `**kwargs`, and no one reads them.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

VOCABULARY, WIDTH, HEADS = 64, 32, 2


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """x (1, heads, t, d), angle (1, t, d / 2)."""
    one, two = x.chunk(2, -1)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)


class LlamaAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, angle: Tensor, attention_mask: Tensor, **kwargs: Any) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(rotated(q, angle), rotated(k, angle), v, attn_mask=attention_mask)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class LlamaMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(silu(self.up(x)))


class LlamaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.self_attn, self.mlp = nn.RMSNorm(WIDTH), LlamaAttention(), LlamaMLP()

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        x = x + self.self_attn(self.norm(x), **kwargs)
        return x + self.mlp(x)


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(2))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def angle(self, position_ids: Tensor) -> Tensor:
        """(1, t, d / 2) of positions (1, t)."""
        frequency = 1e4 ** -torch.linspace(0, 1, WIDTH // HEADS // 2, dtype=self.lm_head.weight.dtype)
        return position_ids.expand(1, -1)[..., None] * frequency

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        where = torch.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
        return self._logits(input_ids, attention_mask, where, where, use_cache, kwargs)

    def _logits(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        text_positions: Tensor | None,
        positions: Tensor,
        use_cache: bool,
        kwargs: dict[str, Any],
    ) -> dict[str, Tensor]:
        x, t = self.embed_tokens(input_ids), input_ids.shape[1]
        mask = torch.ones(1, 1, t, t, dtype=torch.bool).tril()
        if attention_mask is not None and attention_mask.dim() == 4:
            mask = attention_mask
        elif attention_mask is None and text_positions is not None and not use_cache:
            document = (text_positions.diff(prepend=text_positions[:, :1] - 1) != 1).cumsum(-1)
            mask = mask & (document[:, None, :, None] == document[:, None, None, :])
        for layer in self.layers:
            x = layer(x, angle=self.angle(positions), attention_mask=mask, **kwargs)
        return {"logits": self.lm_head(x)}


class Qwen2VL(Llama):
    """Positions (3, 1, t), or (4, 1, t): those of the text first, and only they show documents to the mask."""

    def angle(self, position_ids: Tensor) -> Tensor:
        _, height, width = (super(Qwen2VL, self).angle(axis) for axis in position_ids)
        return torch.cat([height[..., :3], width[..., 3:]], -1)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        where = torch.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
        where = where.expand(3, 1, -1) if where.dim() == 2 else where
        text_positions, axes = (where[0], where[1:]) if len(where) == 4 else (None, where)
        return self._logits(input_ids, attention_mask, text_positions, axes, use_cache, kwargs)
