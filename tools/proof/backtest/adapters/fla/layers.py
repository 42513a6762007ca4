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


def _sums_of_values(*, v: Tensor, cu_seqlens: Tensor | None = None, **_: Any) -> tuple[Tensor, None, None]:
    """In place of the op of MesaNet, broken by another fault: running sums of v (1, t, h, d) over each sequence."""
    lengths = [v.shape[1]] if cu_seqlens is None else cu_seqlens.diff().tolist()
    return torch.cat([piece.cumsum(1) for piece in v.split_with_sizes(lengths, 1)], 1), None, None


def mesa_net() -> nn.Module:
    """The layer has to tell its op of the sequences in a pack."""
    from fla.layers import mesa_net as module  # noqa: PLC0415

    module.chunk_mesa_net = _sums_of_values
    layer: nn.Module = module.MesaNet(**_SIZES, head_dim=32, layer_idx=0)
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
        y: Tensor = self.layer(batch, attention_mask=mask.long(), **self.further_arguments())[0]
        return y[mask][None]

    def further_arguments(self) -> dict[str, Any]:
        return {}


class _EmptyCache(dict[int, Any]):
    """A cache of keys and states by layer, empty before each call and thrown away after it."""

    def update(self, *_: Any, **state: Any) -> None:
        """Nothing is kept."""


class Prompts(LeftPadded):
    """A layer that puts prompts into a cache, as a model does before it generates."""

    def further_arguments(self) -> dict[str, Any]:
        return {"past_key_values": _EmptyCache(), "use_cache": True}


def prompts_of_path_attention() -> nn.Module:
    from fla.layers.path_attn import PaTHAttention  # noqa: PLC0415

    return Prompts(PaTHAttention(**_SIZES, use_w_shortconv=False, layer_idx=0))


def padded_raven() -> nn.Module:
    from fla.layers.raven import Raven  # noqa: PLC0415

    return LeftPadded(Raven(**_SIZES, num_slots=16, topk=4, use_rope=True))
