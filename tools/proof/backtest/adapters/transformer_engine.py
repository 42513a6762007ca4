"""Transformer Engine: offsets of a batch of full length, used as its attention does, which keeps them for gradients."""

import torch
from torch import Tensor

from packproof import refs
from packproof.adapters import Padded, max_seqlen
from packproof.properties.declarations import Promises, kernel
from packproof.properties.ops import Op

_PADDED = Padded()


def _first_tokens(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The first token of each sequence, 0 for one without tokens."""
    rows = [x[0] if len(x) else x.new_zeros(x.shape[1:]) for x in refs.split_sequences(x, cu_seqlens)]
    return torch.stack(rows) if rows else x.new_zeros(0, *x.shape[1:])


FIRST_TOKENS = Op(
    name="first_tokens", reference=_first_tokens, inputs={"x": "t d"}, outputs={"y": "s d"}, sizes=({"d": 3}, {"d": 5})
)


@kernel(op=FIRST_TOKENS, domain="length > 0", promises=Promises(grid="token"))
def first_tokens(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Of a padded batch. index_select keeps the offsets for its backward pass, as fused attention does."""
    from transformer_engine.pytorch.attention.dot_product_attention import utils  # noqa: PLC0415

    batch = _PADDED.to(x, cu_seqlens)
    longest = max_seqlen(cu_seqlens, len(x))
    if not longest:
        return x.new_zeros(0, *x.shape[1:])
    offsets = utils.get_full_cu_seqlens(len(batch), longest, x.device)
    return batch.flatten(0, 1).index_select(0, offsets[:-1])
