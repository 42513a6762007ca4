"""Packed selective_scan in plain torch, written as kernels are (chunks, resets, carries): 7 correct, 25 incorrect."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from packproof.museum.custom_backward import value_with_slope
from packproof.museum.rows import sequence_of_rows
from packproof.museum.variants import bug_names, kernel_lookup

CHUNK = 16


@dataclass(frozen=True)
class ScanPack:
    """The sequence of each row of the pack. Rows past the last offset are one more sequence, the slack."""

    seq: Tensor  # [t]
    starts: Tensor  # [s + 1]
    lengths: Tensor  # [s + 1]
    flipped: bool = False

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: Tensor, n_rows: int) -> "ScanPack":
        cu = torch.cat([cu_seqlens.long(), torch.tensor([n_rows], device=cu_seqlens.device)])
        return cls(sequence_of_rows(cu, torch.arange(n_rows, device=cu.device)), cu[:-1], cu.diff())

    @property
    def token_mask(self) -> Tensor:
        """[t]: not slack."""
        return self.seq < len(self.starts) - 1

    @property
    def is_first(self) -> Tensor:
        """[t]: the row starts its sequence."""
        return torch.arange(len(self.seq), device=self.seq.device) == self.starts[self.seq]

    def flip(self) -> "ScanPack":
        """The same rows from the last to the first."""
        ends = self.starts + self.lengths
        return ScanPack(
            len(self.starts) - 1 - self.seq.flip(0),
            len(self.seq) - ends.flip(0),
            self.lengths.flip(0),
            not self.flipped,
        )


def shift_rows(x: Tensor, offset: int, fill: float) -> Tensor:
    """x [k, chunk, c] shifted down by `offset` rows inside each chunk."""
    return pad(x[:, :-offset], (0, 0, offset, 0), value=fill)


def prefix(a: Tensor, b: Tensor, reset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decay and input of the rows up to each one, inside each chunk [k, chunk, c], and whether one of them resets."""
    stride = 1
    while stride < a.shape[1]:
        a_shifted, b_shifted = shift_rows(a, stride, 1), shift_rows(b, stride, 0)
        a, b = torch.where(reset, a, a * a_shifted), torch.where(reset, b, a * b_shifted + b)
        reset = reset | shift_rows(reset, stride, False)
        stride *= 2
    return a, b, reset


def prefix_multiplying(a: Tensor, b: Tensor, reset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """S4: as `prefix`, but a reset is a decay of 0."""
    a = a * ~reset
    stride = 1
    while stride < a.shape[1]:
        a, b = a * shift_rows(a, stride, 1), a * shift_rows(b, stride, 0) + b
        stride *= 2
    return a, b, torch.zeros_like(reset)


def prefix_dividing(a: Tensor, b: Tensor, reset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """S10: as `prefix`, from a cumulative product, divided out."""
    product = torch.where(reset, 1, a).cumprod(1)
    part = reset.int().cumsum(1)
    summed = torch.zeros_like(b)
    for p in range(int(part.amax()) + 1):
        summed = torch.where(part == p, product * torch.where(part == p, b / product, 0).cumsum(1), summed)
    return product, summed, part > 0


PREFIXES = {"S4": prefix_multiplying, "S10": prefix_dividing}


def chunked_scan(a: Tensor, b: Tensor, reset: Tensor, chunk: int, bug: str) -> Tensor:
    """h [t, c] of h = a h + b, restarted where `reset` [t]: prefixes inside the chunks, and a carry between them."""
    t, c = b.shape
    if t == 0:
        return b
    k = -(-t // chunk)
    a = pad(a, (0, 0, 0, k * chunk - t), value=1).view(k, chunk, c)
    b = pad(b, (0, 0, 0, k * chunk - t)).view(k, chunk, c)
    starts = pad(reset, (0, k * chunk - t)).view(k, chunk, 1)
    max_resets = {"S5": 1, "S18": 2}.get(bug, chunk)
    reset = starts & (starts.cumsum(1) <= max_resets)
    decay, inner, cut = PREFIXES.get(bug, prefix)(a, b, reset)
    carry, h = torch.zeros_like(b[0, 0]), []
    for i in range(k):
        decay_i, cut_i = decay[i], cut[i]
        if bug == "S3" and starts[i, 0]:
            decay_i, cut_i = a[i].cumprod(0), starts[i].cumsum(0) > 1
        h.append(torch.where(cut_i, inner[i], decay_i * carry + inner[i]))
        if bug == "S12" and i > 0 and not starts[i].any():
            continue
        carry = h[-1][-1]
        if bug == "S9":
            carry = carry.bfloat16().to(carry)
        if bug == "S24":
            carry = carry[-1].expand_as(carry)
        if bug == "S22" and i > 1 and starts[i - 2, 1:].any() and not starts[i - 1 : i + 1].any():
            carry = torch.zeros_like(carry)
    return torch.cat(h)[:t]


def pack_grid(a: Tensor, b: Tensor, entry: Tensor, pack: ScanPack, *, chunk: int = CHUNK, bug: str = "") -> Tensor:
    """h [t, c], chunks counted from the start of the pack; an entering state [s+1, c] joins the first input."""
    owner, is_first = pack.seq, pack.is_first
    entering = reset = is_first
    if bug == "S1":
        reset = is_first & (torch.arange(len(b), device=b.device) == 0)
    if bug == "S2":
        reset = torch.cat([is_first[:1], is_first[:-1]])
    if bug == "S25":
        reset = is_first | (torch.arange(len(b), device=b.device) % (chunk // 2) == 0)
    if bug == "S6":
        owner = (pack.lengths > 0).cumsum(0)[pack.seq] - 1
    if bug == "S17":
        reset = is_first & (pack.seq < 16)
    if bug == "S19" and pack.lengths[0] == 0:
        entering = reset = is_first & (torch.arange(len(b), device=b.device) > 0)
    if bug == "S20":
        empty = pad(pack.lengths == 0, (2, 0))
        owner = owner - (empty[1:-1] & empty[:-2])[pack.seq].long()
    b = torch.where(entering[:, None], b + a * entry[owner], b)
    return chunked_scan(a, b, reset, chunk, bug)


def tree_scan(a: Tensor, b: Tensor, entry: Tensor, pack: ScanPack) -> Tensor:
    """h [t, c] by doubling over the whole pack."""
    return pack_grid(a, b, entry, pack, chunk=max(len(b), 1))


def sequential_scan(a: Tensor, b: Tensor, entry: Tensor, pack: ScanPack) -> Tensor:
    """h [t, c], row by row."""
    h, rows = torch.zeros_like(entry[0]), []
    for is_first, seq, a_t, b_t in zip(pack.is_first.tolist(), pack.seq.tolist(), a.unbind(), b.unbind(), strict=True):
        h = a_t * (entry[seq] if is_first else h) + b_t
        rows.append(h)
    return torch.stack(rows) if rows else b


def sequence_grid(a: Tensor, b: Tensor, entry: Tensor, pack: ScanPack, *, chunk: int = CHUNK) -> Tensor:
    """h [t, c], chunks counted from the start of each sequence; its entering state is the first carry."""
    chunks = -(-pack.lengths // chunk)
    first_chunk = chunks.cumsum(0) - chunks
    shift = first_chunk * chunk - pack.starts
    if pack.flipped:  # the grid of the forward: the ragged chunk comes first
        shift = shift + chunks * chunk - pack.lengths
    index = torch.arange(len(b), device=b.device) + shift[pack.seq]
    k, c = int(chunks.sum()), b.shape[1]
    a = a.new_ones(k * chunk, c).index_copy(0, index, a).view(k, chunk, c)
    b = b.new_zeros(k * chunk, c).index_copy(0, index, b).view(k, chunk, c)
    entering = a[:, 0].clone()  # multiplies the carry alone, so that a run cut here has the same products
    a[:, 0] = 1
    decay, inner, _ = prefix(a, b, a.new_zeros(k, chunk, 1, dtype=torch.bool))
    entry_by_chunk = dict(zip(first_chunk[chunks > 0].tolist(), entry[chunks > 0].unbind(), strict=True))
    carry, h = torch.zeros_like(entry[0]), []
    for i in range(k):
        h.append(decay[i] * (entering[i] * entry_by_chunk.get(i, carry)) + inner[i])
        carry = h[-1][-1]
    return torch.cat(h)[index] if h else b.view(0, c)


def final_states(h: Tensor, h0: Tensor, a: Tensor, pack: ScanPack, bug: str) -> Tensor:
    """State [s, c] after the last token of each sequence."""
    n = len(pack.starts) - 1
    starts, lengths, h0 = pack.starts[:n], pack.lengths[:n], h0[:n]
    last_row, is_written = starts + lengths - 1, lengths > 0
    at_chunk_end = (last_row + 1) % CHUNK == 0
    if bug == "S7":
        last_row = (last_row // CHUNK * CHUNK + CHUNK - 1).clamp(max=len(h) - 1)
    if bug == "S13":
        is_written = is_written | (starts > 0)
    if bug == "S21":
        is_written = is_written & ~(at_chunk_end & (last_row + 1 < len(h)))
    if bug == "S23":
        is_written = is_written & ~(at_chunk_end & (lengths == 1))
    final = h0.clone()
    final[is_written] = h[last_row[is_written]]
    if bug == "S16" and n and lengths[-1] and not at_chunk_end[-1]:
        final[-1] = final[-1] * a[last_row[-1]]
    if bug == "S8":
        final = final[-1:].expand_as(final).clone()
    return final


class Recurrence(torch.autograd.Function):
    """h = exp(la) h + b with la and b [t, c], from h0 [s+1, c]: each row's state [t, c] and the final ones [s, c]."""

    @staticmethod
    def forward(
        ctx: Any, la: Tensor, b: Tensor, h0: Tensor, pack: ScanPack, scan: Callable[..., Tensor], bug: str
    ) -> tuple[Tensor, Tensor]:
        a = la.exp()
        h = scan(a, b, h0, pack, bug=bug) if bug and bug != "S25" else scan(a, b, h0, pack)
        if bug == "S14" and len(h) % CHUNK == 1 and len(h) > CHUNK:
            h[-1] = 0
        ctx.save_for_backward(a, h, h0)
        ctx.pack, ctx.scan, ctx.bug = pack, scan, bug
        return h, final_states(h, h0, a, pack, bug)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
        a, h, h0 = ctx.saved_tensors
        pack, reversed_pack = ctx.pack, ctx.pack.flip()
        scan = partial(ctx.scan, bug={"S11": "S1"}.get(ctx.bug, ctx.bug)) if ctx.bug in ("S11", "S25") else ctx.scan
        entry = torch.cat([dfinal, torch.zeros_like(h0[:1])])
        to_next = torch.where(reversed_pack.is_first.flip(0)[:, None], 1, torch.cat([a[1:], a[:1]]))
        db = scan(to_next.flip(0), dh.flip(0), entry.flip(0), reversed_pack).flip(0)
        previous_h = torch.where(pack.is_first[:, None], h0[pack.seq], torch.cat([h[:1], h[:-1]]))
        dh0, has_tokens = entry, pack.lengths > 0
        dh0[has_tokens] = (a * db)[pack.starts[has_tokens]]
        if ctx.bug == "S15":
            dh0[1:] = 0
        return db * previous_h * a, db, dh0, None, None, None


def sigmoid(x: Tensor) -> Tensor:
    """The logistic function, by exp. The last bit of torch.sigmoid depends on an element's position in its tensor."""
    exp_neg = (-x.abs()).exp()
    return torch.where(x >= 0, 1, exp_neg) / (1 + exp_neg)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), with the same bits at every position in the tensor."""
    with torch.no_grad():
        exp_neg = (-x.abs()).exp()
        one_plus_exp = 1 + exp_neg
        log1p = torch.where(one_plus_exp == 1, exp_neg, exp_neg * one_plus_exp.log() / (one_plus_exp - 1))
        value, slope = x.clamp(min=0) + log1p, sigmoid(x)
    return value_with_slope(x, value, slope)


def by_channel(x: Tensor, token_mask: Tensor, d: int) -> Tensor:
    """B or C, [t, n] or [t, g, n], for each channel: [t, d, n]; slack rows are zero."""
    x = x[:, None] if x.ndim == 2 else x
    x = torch.where(token_mask[:, None, None], x, 0)[:, :, None]
    return x.expand(-1, -1, d // x.shape[1], -1).flatten(1, 2)


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    *,
    delta_softplus: bool = False,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    scan: Callable[..., Tensor] = pack_grid,
    bug: str = "",
) -> Tensor | tuple[Tensor, Tensor]:
    """Op `selective_scan`, computing in fp32 (fp64 for fp64) with the given scan, with the named bug."""
    (t, d), n = u.shape, A.shape[1]
    acc = torch.float64 if u.dtype == torch.float64 else torch.float32
    pack = ScanPack.from_cu_seqlens(cu_seqlens, t)
    token_mask = pack.token_mask[:, None]
    x, step = torch.where(token_mask, u, 0).to(acc), torch.where(token_mask, delta, 0).to(acc)
    step = step if delta_bias is None else step + delta_bias
    step = softplus(step) if delta_softplus else step
    la = step[:, :, None] * A
    b = (step * x)[:, :, None] * by_channel(B.to(acc), pack.token_mask, d)
    h0 = A.new_zeros(len(pack.starts) - 1, d, n) if initial_states is None else initial_states
    h0 = torch.cat([h0.to(acc), A.new_zeros(1, d, n, dtype=acc)])
    h, final = Recurrence.apply(  # type: ignore[no-untyped-call]
        la.flatten(1), b.flatten(1), h0.flatten(1), pack, scan, bug
    )
    y = (h.view(t, d, n) * by_channel(C.to(acc), pack.token_mask, d)).sum(-1)
    y = y if D is None else y + D * x
    if z is not None:
        z = torch.where(token_mask, z, 0).to(acc)
        y = y * z * sigmoid(z)
    y = torch.where(token_mask, y, 0).to(u)
    return (y, final.view(-1, d, n)) if return_final_states else y


FORMS: dict[str, dict[str, Any]] = {
    "correct": {},
    "chunk8": {"scan": partial(pack_grid, chunk=8)},
    "chunk32": {"scan": partial(pack_grid, chunk=32)},
    "whole_tree": {"scan": tree_scan},
    "one_by_one": {"scan": sequential_scan},
    "own_grid": {"scan": sequence_grid},
    "own_grid8": {"scan": partial(sequence_grid, chunk=8)},
}

__getattr__ = kernel_lookup(selective_scan, FORMS, bug_names("S", 25))
