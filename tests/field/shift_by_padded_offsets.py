"""Multi-token prediction on THD with padded sequences (NVIDIA/Megatron-LM#6205).

The tensor is laid out by cu_seqlens_padded; the incorrect kernel rolls by cu_seqlens.
"""

from itertools import pairwise

import torch

import packproof
from packproof.adapters import Gaps, adapt, cu_seqlens_int32
from packproof.refs import join_sequences, split_sequences

THD = Gaps(multiple=4)


def shift(x, *, cu_seqlens):
    """x: (t, d). y[i] is x[i + 1] of the same sequence, 0 for its last token."""
    return join_sequences([torch.cat([p[1:], 0 * p[:1]]) for p in split_sequences(x, cu_seqlens)], x)


OP = packproof.Op(
    name="mtp_shift", reference=shift, inputs={"x": "t d"}, outputs={"y": "t d"}, sizes=({"d": 3},), causal=False
)


def _rolled(x, boundaries):
    """Each slice between two boundaries, rolled by one to the left, 0 in its last row."""
    y = x.clone()
    for a, b in pairwise(boundaries.tolist()):
        if b > a:
            y[a:b] = torch.cat([x[a + 1 : b], 0 * x[a : a + 1]])
    return y


def _shifted(x, cu_seqlens, cu_seqlens_padded, boundaries):
    mask = x.new_zeros(len(x), 1)
    for a, n in zip(cu_seqlens_padded.tolist(), cu_seqlens.diff().tolist(), strict=False):
        mask[a : a + n] = 1
    return torch.where(_rolled(mask, boundaries) > 0, _rolled(torch.where(mask > 0, x, 0), boundaries), 0)


def _by_padded_offsets(x, *, cu_seqlens, cu_seqlens_padded):
    return _shifted(x, cu_seqlens, cu_seqlens_padded, cu_seqlens_padded)


def _by_offsets(x, *, cu_seqlens, cu_seqlens_padded):
    return _shifted(x, cu_seqlens, cu_seqlens_padded, cu_seqlens)


def _adapted(function):
    metadata = {"cu_seqlens": cu_seqlens_int32, "cu_seqlens_padded": THD.cu_seqlens}
    return adapt(function, op=OP, tokens=THD, metadata=metadata)


correct = _adapted(_by_padded_offsets)
incorrect = _adapted(_by_offsets)
