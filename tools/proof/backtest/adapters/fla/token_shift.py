"""flash-linear-attention's token shift: the difference of a token from the one before it."""

import torch
from torch import Tensor

from packproof import refs
from packproof.properties.bounds import magnitude
from packproof.properties.declarations import kernel
from packproof.properties.ops import Op


def _difference(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """y[t] = x[t - 1] - x[t], from x[-1] = 0."""
    return refs.join_sequences([_before(rows) - rows for rows in refs.split_sequences(x, cu_seqlens)], x)


def _sum(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """|x[t - 1]| + |x[t]|."""
    pieces = refs.split_sequences(magnitude(x), cu_seqlens)
    return refs.join_sequences([_before(rows) + rows for rows in pieces], x)


def _before(rows: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(rows[:1]), rows[:-1]])


TOKEN_SHIFT = Op(
    name="token_shift",
    reference=_difference,
    absolute=_sum,
    inputs={"x": "t d"},
    outputs={"y": "t d"},
    sizes=({"d": 3}, {"d": 16}, {"d": 130}),
    model_sizes=({"d": 768},),
)


@kernel(op=TOKEN_SHIFT, slack=False)
def token_shift(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    from fla.modules.token_shift import token_shift as shift  # noqa: PLC0415

    y: Tensor = shift(x.unsqueeze(0), cu_seqlens)
    return y.squeeze(0)
