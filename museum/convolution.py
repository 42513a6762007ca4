"""Packed causal_conv1d in plain torch, written as kernels are (taps, masks): 4 correct, 20 incorrect."""

from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from packproof.museum.rows import sequence_of_rows
from packproof.museum.variants import bug_names, kernel_lookup

CHUNK = 16


@dataclass(frozen=True)
class PackRows:
    """Position and sequence of each row of the pack. Rows past the last offset are one more sequence, the slack."""

    row: Tensor  # [t]
    seq: Tensor  # [t]
    start: Tensor  # [t] of the row's sequence
    end: Tensor  # [t]
    starts: Tensor  # [s + 1]
    lengths: Tensor  # [s + 1]
    n_sequences: int

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: Tensor, n_rows: int, bug: str) -> "PackRows":
        cu = torch.cat([cu_seqlens.long(), torch.tensor([n_rows], device=cu_seqlens.device)])
        row = torch.arange(n_rows, device=cu.device)
        seq = sequence_of_rows(cu, row, right=bug != "C10")
        return cls(row, seq, cu[seq], cu[seq + 1], cu[:-1], cu.diff(), len(cu) - 2)

    @property
    def token_mask(self) -> Tensor:
        """[t, 1]: not slack."""
        return (self.seq < self.n_sequences)[:, None]


def load(source: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    """source[index] where the mask holds, 0 elsewhere. Like a masked load, it never reads a masked element."""
    padded = torch.cat([source, source.new_zeros(1, *source.shape[1:])])
    return padded[torch.where(mask, index, len(source))]


def tap(x: Tensor, states: Tensor, rows: PackRows, distance: int, bug: str) -> Tensor:
    """The input `distance` tokens before each row, from x [t, d] or from the initial states [s+1, w-1, d]."""
    w = states.shape[1] + 1
    source, local = rows.row - distance, rows.row - rows.start
    inside = source >= rows.start
    if bug == "C1":
        inside = source >= 0
    if bug == "C2":
        inside = (source >= rows.start - 1) & (source >= 0)
    if bug == "C3":
        inside = (source >= 0) & ((rows.row - 1 >= rows.start) | (distance == 0))
    in_state = ~inside & (source < rows.start) & (local < w - 1)
    if bug == "C4":
        inside = inside & (source >= rows.row // CHUNK * CHUNK - max(w - 2, 0))
    if bug == "C14":
        in_state = in_state & (rows.lengths[rows.seq] >= w - 1)
    owner = rows.seq
    if bug == "C11":
        owner = (rows.lengths > 0).cumsum(0)[rows.seq] - 1
    token = x[source.clamp(min=0)] * inside[:, None] if bug == "C13" else load(x, source, inside)
    return token + load(states.flatten(0, 1), owner * (w - 1) + local - distance + w - 1, in_state)


def sum_terms(terms: list[Tensor], order: str, bug: str = "") -> Tensor:
    """The sum of the terms, oldest tap first, newest first, or as a tree."""
    if bug == "C12":
        return reduce(lambda acc, term: (acc + term).bfloat16().to(term), terms, torch.zeros_like(terms[0]))
    if order == "newest_first":
        terms = terms[::-1]
    while order == "tree" and len(terms) > 1:
        terms = [a if b is None else a + b for a, b in zip_longest(terms[::2], terms[1::2])]
    return reduce(torch.add, terms)


def apply_filter(taps: list[Tensor], weight: Tensor, order: str, bug: str) -> Tensor:
    """Σ_j weight[:, j] · tap j: [t, d]."""
    if order == "matmul":
        return torch.einsum("jtd, dj -> td", torch.stack(taps), weight)
    return sum_terms([tap_values * weight[:, j] for j, tap_values in enumerate(taps)], order, bug)


def last_inputs(x: Tensor, states: Tensor, rows: PackRows, w: int, bug: str) -> Tensor:
    """The final states [s, w-1, d]: the last w-1 entries of a sequence's initial state followed by its tokens."""
    lengths = rows.lengths[:, None]
    # from the start of the sequence; negative in the initial state
    local = lengths - (w - 1) + torch.arange(w - 1, device=x.device)
    if bug == "C20":  # the tokens of a short sequence begin at slot 0
        local = local + (w - 1 - lengths).clamp(min=0) * (lengths > 0)
    if bug == "C16":
        local = torch.where(lengths == w - 1, local - 1, local)
    inside = (local >= 0) & (local < lengths)
    if bug == "C7":
        inside = (inside | (lengths > 0)) & (rows.starts[:, None] + local >= 0)
    state_index = torch.arange(len(states), device=x.device)[:, None] * (w - 1) + local + w - 1
    from_state = load(states.flatten(0, 1), state_index, ~inside & (local < 0))
    final = load(x, rows.starts[:, None] + local, inside) + from_state
    final = final[: rows.n_sequences]
    if bug == "C8":
        final = torch.where(lengths[: rows.n_sequences, :, None] == 0, 0, final)
    if bug == "C9":
        final = final[-1:].expand_as(final).clone()
    if bug == "C17" and rows.n_sequences and rows.lengths[rows.n_sequences - 1] == 0:
        final[-1] = 0
    return final


def grad_x(dpre: Tensor, dfinal: Tensor, weight: Tensor, rows: PackRows, order: str, bug: str) -> Tensor:
    """Each row gathers from the rows reading it, and from the final state holding it: [t, d]."""
    w = weight.shape[1]
    terms = []
    for j in range(w):
        reader = rows.row + (w - 1 - j)
        in_sequence = reader < (len(rows.row) if bug == "C6" else rows.end)
        terms.append(load(dpre, reader, in_sequence) * weight[:, j])
    state_slot = rows.row - rows.end + w - 1  # in the final state
    if bug == "C18":
        state_slot = rows.row - rows.start - (rows.lengths[rows.seq] - (w - 1)).clamp(min=0)
    from_final = load(dfinal.flatten(0, 1), rows.seq * (w - 1) + state_slot, (state_slot >= 0) & rows.token_mask[:, 0])
    return sum_terms(terms, order) + from_final


def grad_states(dpre: Tensor, dfinal: Tensor, weight: Tensor, rows: PackRows, bug: str) -> Tensor:
    """Each entry gathers from the first tokens, and from the final state of a short sequence: [s, w-1, d]."""
    w, n = weight.shape[1], rows.n_sequences
    starts, lengths = rows.starts[:n], rows.lengths[:n]
    state_slot = torch.arange(w - 1, device=lengths.device) - lengths[:, None]
    mask = (state_slot >= 0) & (bug != "C19")
    dstates = load(
        dfinal.flatten(0, 1), torch.arange(n, device=state_slot.device)[:, None] * (w - 1) + state_slot, mask
    )
    for i in range(w - 1):
        reached = i < lengths
        if bug == "C15":
            reached = reached & (lengths >= w - 1)
        dstates[:, i:] += load(dpre, starts + i, reached)[:, None] * weight.T[: w - 1 - i]
    return dstates


def sigmoid(x: Tensor) -> Tensor:
    """The logistic function, by exp. The last bit of torch.sigmoid depends on an element's position in its tensor."""
    exp_neg = (-x.abs()).exp()
    return torch.where(x >= 0, 1, exp_neg) / (1 + exp_neg)


class Convolution(torch.autograd.Function):
    """Forward and backward in the accumulator's dtype: x [t, d], weight [d, w], bias [d], states [s, w-1, d]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        states: Tensor,
        rows: PackRows,
        silu: bool,
        order: str,
        bug: str,
    ) -> tuple[Tensor, Tensor]:
        w = weight.shape[1]
        with_slack = torch.cat([states, states.new_zeros(1, *states.shape[1:])])
        taps = [tap(x, with_slack, rows, w - 1 - j, bug) for j in range(w)]
        pre = apply_filter(taps, weight, order, bug) + bias
        ctx.save_for_backward(x, weight, pre, *taps)
        ctx.rows, ctx.silu, ctx.order, ctx.bug = rows, silu, order, bug
        y = pre * sigmoid(pre) if silu else pre
        return torch.where(rows.token_mask, y, 0), last_inputs(x, with_slack, rows, w, bug)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, pre, *taps = ctx.saved_tensors
        rows, w = ctx.rows, weight.shape[1]
        if ctx.silu:
            gate = sigmoid(pre)
            dy = dy * (gate + pre * gate * (1 - gate))
        dpre = torch.where(rows.token_mask, dy, 0)
        if ctx.bug == "C5":
            taps = [load(x, rows.row - (w - 1 - j), rows.row >= w - 1 - j) for j in range(w)]
        dweight = torch.stack([(dpre * torch.where(rows.token_mask, tap_values, 0)).sum(0) for tap_values in taps], 1)
        dx = grad_x(dpre, dfinal, weight, rows, ctx.order, ctx.bug)
        return dx, dweight, dpre.sum(0), grad_states(dpre, dfinal, weight, rows, ctx.bug), None, None, None, None


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    activation: str | None = None,
    return_final_states: bool = False,
    order: str = "oldest_first",
    bug: str = "",
) -> Tensor | tuple[Tensor, Tensor]:
    """Op `causal_conv1d`, accumulating in fp32 (fp64 for fp64) in the named order, with the named bug."""
    d, w = weight.shape
    acc = torch.float64 if x.dtype == torch.float64 else torch.float32
    rows = PackRows.from_cu_seqlens(cu_seqlens, len(x), bug)
    bias = x.new_zeros(d) if bias is None else bias
    states = x.new_zeros(rows.n_sequences, d, w - 1) if initial_states is None else initial_states
    y, final = Convolution.apply(  # type: ignore[no-untyped-call]
        x.to(acc), weight.to(acc), bias.to(acc), states.to(acc).transpose(1, 2), rows, activation == "silu", order, bug
    )
    return (y.to(x), final.transpose(1, 2).to(x)) if return_final_states else y.to(x)


FORMS: dict[str, dict[str, Any]] = {
    "correct": {},
    "newest_first": {"order": "newest_first"},
    "tree": {"order": "tree"},
    "matmul": {"order": "matmul"},
}

__getattr__ = kernel_lookup(causal_conv1d, FORMS, bug_names("C", 20))
