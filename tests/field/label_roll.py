"""Log-probability of the next token, from packed logits (verl-project/verl#6475).

The incorrect kernel rolls the ids of the packed row: the last token of a sequence gets the label of the next one.
"""

import torch

import packproof
from packproof.refs import join_sequences, split_sequences


def logprob(logits, ids, *, cu_seqlens):
    """logits: (t, n), ids: (t,). Returns (t,): log p(next token of the same sequence), 0 at its last token."""

    def of_sequence(logits, ids):
        if len(logits) == 0:
            return logits.sum(-1)
        labels = ids[1:, None].long()
        return torch.cat([logits.log_softmax(-1)[:-1].gather(-1, labels)[:, 0], 0 * logits[-1:, 0]])

    pieces = zip(split_sequences(logits, cu_seqlens), split_sequences(ids, cu_seqlens), strict=True)
    return join_sequences([of_sequence(*piece) for piece in pieces], logits[:, 0])


OP = packproof.Op(
    name="logprob",
    reference=logprob,
    inputs={"logits": "t n", "ids": "t"},
    outputs={"y": "t"},
    sizes=({"n": 5}, {"n": 8}),
    draws={"ids": "id|n"},
    constants=frozenset({"ids"}),
    causal=False,
)


def _rolled(logits, ids, cu_seqlens):
    """The log-probabilities with labels rolled over the whole row, and the rows of sequences."""
    labels = torch.roll(ids.long(), -1, 0)
    inside = torch.arange(len(logits), device=logits.device) < cu_seqlens[-1]
    logits = torch.where(inside[:, None], logits, 0).to(torch.promote_types(logits.dtype, torch.float32))
    return logits.log_softmax(-1).gather(-1, labels[:, None])[:, 0], inside


def correct(logits, ids, *, cu_seqlens):
    y, inside = _rolled(logits, ids, cu_seqlens)
    last = torch.isin(torch.arange(1, len(logits) + 1, device=logits.device), cu_seqlens.long())
    return torch.where(inside & ~last, y, 0).to(logits.dtype)


def incorrect(logits, ids, *, cu_seqlens):
    y, inside = _rolled(logits, ids, cu_seqlens)
    return torch.where(inside, y, 0).to(logits.dtype)
