"""The last token of each sequence, found from position ids (modelscope/ms-swift#9904).

The incorrect kernel starts a sequence where a position is below the one before: 0, 0 is no start.
"""

import torch

import packproof
from packproof.adapters import Batched, adapt, position_ids
from packproof.refs import split_sequences


def last_token(x, *, cu_seqlens):
    """x: (t, d). Returns (s, d), 0 for a sequence without tokens."""
    rows = [p[-1] if len(p) else x.new_zeros(x.shape[1]) for p in split_sequences(x, cu_seqlens)]
    return torch.stack(rows) if rows else x.new_zeros(0, x.shape[1])


OP = packproof.Op(name="last_token", reference=last_token, inputs={"x": "t d"}, outputs={"y": "s d"}, sizes=({"d": 3},))


def _ends(starts, n):
    """Rows of last tokens, from the rows of all starts but the first."""
    return torch.cat([starts - 1, starts.new_tensor([n - 1] if n else [])])


def _where_positions_are_zero(x, *, position_ids):
    """x: (1, t, d). position_ids: (1, t). Returns (s, d)."""
    positions = position_ids[0]
    return x[0][_ends((positions == 0).nonzero()[1:, 0], len(positions))]


def _where_positions_decrease(x, *, position_ids):
    positions = position_ids[0]
    return x[0][_ends((positions[1:] < positions[:-1]).nonzero()[:, 0] + 1, len(positions))]


def _adapted(function):
    metadata = {"position_ids": position_ids}
    return adapt(function, op=OP, tokens=Batched(), metadata=metadata, domain="length > 0", slack=False)


correct = _adapted(_where_positions_are_zero)
incorrect = _adapted(_where_positions_decrease)
