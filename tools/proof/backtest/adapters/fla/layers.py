"""flash-linear-attention: small layers, packed by offsets beside an attention mask of ones, and padded on the left.

A mask of ones is what a tokenizer or a trainer adds to a pack; it says nothing of the sequences in it.
"""

from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 64  # of a token
_SIZES: dict[str, Any] = {"hidden_size": WIDTH, "num_heads": 2}


class WithMaskOfOnes(nn.Module):
    """A layer that gets an attention mask of ones beside the offsets of a pack."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        """x and the result are (1, t, width)."""
        mask = torch.ones(x.shape[:2], dtype=torch.int64, device=x.device)
        y: Tensor = self.layer(x, attention_mask=mask, cu_seqlens=cu_seqlens)[0]
        return y


def gated_linear_attention() -> nn.Module:
    from fla.layers.gla import GatedLinearAttention  # noqa: PLC0415

    return WithMaskOfOnes(GatedLinearAttention(**_SIZES))


def mesa_net() -> nn.Module:
    from fla.layers.mesa_net import MesaNet  # noqa: PLC0415

    layer: nn.Module = MesaNet(**_SIZES, head_dim=32, layer_idx=0)
    return layer


def kimi_delta_attention() -> nn.Module:
    from fla.layers.kda import KimiDeltaAttention  # noqa: PLC0415

    return WithMaskOfOnes(KimiDeltaAttention(**_SIZES, head_dim=32))


class LeftPadded(nn.Module):
    """A layer on a batch of the sequences of a pack, each padded in front to the longest one.

    layer: takes (batch, tokens, width) and an attention mask of them.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        """x and the result are (1, t, width)."""
        lengths = cu_seqlens.diff()
        longest = int(lengths.max())
        mask = torch.arange(longest, device=x.device) >= longest - lengths[:, None]
        batch = x.new_zeros(len(lengths), longest, x.shape[-1])
        batch[mask] = x[0]
        y: Tensor = self.layer(batch, attention_mask=mask.long())[0]
        return y[mask][None]


def padded_raven() -> nn.Module:
    from fla.layers.raven import Raven  # noqa: PLC0415

    return LeftPadded(Raven(**_SIZES, num_slots=16, topk=4, use_rope=True))
