"""Packed ssd in plain torch, written as kernels are (chunks, decay matrices, carries): 7 correct, 18 incorrect."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, einsum
from torch.nn.functional import pad

from packproof.museum.custom_backward import value_with_slope
from packproof.museum.rows import sequence_of_rows
from packproof.museum.variants import bug_names, kernel_lookup

CHUNK = 16
FORGOTTEN = -750  # exp of it is 0 in float64; a stronger decay would cost the other terms of a sum their digits

Sums = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class SsdPack:
    """The sequence of each row of the pack. Rows past the last offset are one more sequence, the slack."""

    seq: Tensor  # [t]
    starts: Tensor  # [s + 1]
    lengths: Tensor  # [s + 1]

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: Tensor, n_rows: int) -> "SsdPack":
        cu = torch.cat([cu_seqlens.long(), torch.tensor([n_rows], device=cu_seqlens.device)])
        return cls(sequence_of_rows(cu, torch.arange(n_rows, device=cu.device)), cu[:-1], cu.diff())

    @property
    def is_last(self) -> Tensor:
        """[t]: the row ends its sequence."""
        return torch.arange(len(self.seq), device=self.seq.device) == (self.starts + self.lengths - 1)[self.seq]


@dataclass(frozen=True)
class SsdTokens:
    """The inputs of the recurrence h = exp(la) h + x Bᵀ, y = h C."""

    la: Tensor  # [t, h]
    x: Tensor  # [t, h, p]
    B: Tensor  # [t, h, n]
    C: Tensor  # [t, h, n]

    def __getitem__(self, rows: Any) -> "SsdTokens":
        return SsdTokens(self.la[rows], self.x[rows], self.B[rows], self.C[rows])

    def constant_b(self) -> "SsdTokens":
        return SsdTokens(self.la, self.x, self.B.detach(), self.C)

    def padded_to(self, k: int) -> "SsdTokens":
        """Pad to k rows; the added rows leave the state unchanged."""
        la, *tensors = (self.la, self.x, self.B, self.C)
        more = k - len(la)
        return SsdTokens(pad(la, (0, 0, 0, more)), *(pad(v, (0, 0, 0, 0, 0, more)) for v in tensors))


def backward_only(x: Tensor) -> Tensor:
    """Zero, with the gradient of x."""
    return x - x.detach()


def sums(la: Tensor) -> Tensor:
    """Σ la over the rows after j up to i, [h, i, j], each summed on its own; row 0 precedes the first."""
    return terms(la).cumsum(1)


def terms(la: Tensor) -> Tensor:
    """The terms of `sums` over i: la of the rows after j."""
    k = len(la) + 1
    later = la.new_ones(k, k, dtype=torch.bool).tril(-1)
    return torch.where(later, pad(la, (0, 0, 1, 0)).T[:, :, None], 0)


def differences(la: Tensor) -> Tensor:
    """`sums` as differences of a cumulative sum: fewer additions, and fewer digits."""
    return pairwise_differences(cumulative_sums(la.clamp(min=FORGOTTEN)))


def cumulative_sums(la: Tensor) -> Tensor:
    """Σ la from the first row to i, [i, h], row 0 before the first."""
    return pad(la.cumsum(0), (0, 0, 1, 0))


class BackwardFromTotal(torch.autograd.Function):
    """D18: a cumulative sum. Its backward, a sum from the end, is computed as total - sum from the start + own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.cumsum(1)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return d.sum(1, keepdim=True) - d.cumsum(1) + d


def pairwise_differences(cs: Tensor) -> Tensor:
    """cs_i - cs_j, [h, i, j]."""
    return (cs[:, None] - cs).movedim(-1, 0)


def decays(between: Tensor, mask: Tensor, bug: str = "") -> Tensor:
    """exp of the sums of la [h, i, j] where the mask [i, j] holds, else 0."""
    if bug == "D1":
        return between.exp() * mask
    return torch.where(mask, between, -torch.inf).exp()


def outputs(part: SsdTokens, L: Tensor, log_decay: Tensor, entering: Tensor, bug: str = "") -> Tensor:
    """y [k, h, p] from the rows of the chunk through L [h, k, k], and from the entering states [k, h, p, n]."""
    scores = einsum("ihn,jhn->hij", part.C, part.B)
    if bug == "D12":
        scores = scores.bfloat16().to(scores)
    return einsum("hij,jhp->ihp", scores * L, part.x) + log_decay.exp()[..., None] * einsum(
        "ihn,ihpn->ihp", part.C, entering
    )


def states(part: SsdTokens, L: Tensor) -> Tensor:
    """The state [r, h, p, n] from the rows of the chunk, for the rows of L [h, r, k]."""
    return einsum("hrj,jhp,jhn->rhpn", L, part.x, part.B)


def pack_grid(
    tokens: SsdTokens, h0: Tensor, pack: SsdPack, *, chunk: int = CHUNK, summation: Sums = differences, bug: str = ""
) -> tuple[Tensor, Tensor]:
    """y [t, h, p] and final states [s+1, h, p, n], chunks counted from the start of the pack."""
    t, pack_sums = len(tokens.x), cumulative_sums(tokens.la)
    carry, ys, ends, finals = torch.zeros_like(h0[0]), [tokens.x[:0]], [pack.seq[:0]], [h0[:0]]
    for c0 in range(0, t, chunk):
        rows = slice(c0, min(t, c0 + chunk))
        part, seq, k = tokens[rows], pack.seq[rows], rows.stop - c0
        between = pairwise_differences(pack_sums[c0 : rows.stop + 1]) if bug == "D10" else summation(part.la)
        if bug == "D17":
            between = pairwise_differences(pad(part.la.cumsum(1), (0, 0, 1, 0)))
        if bug == "D18":
            between = BackwardFromTotal.apply(terms(part.la))  # type: ignore[no-untyped-call]
        origin = (pack.starts[seq] - c0).clamp(min=0)  # the start of the sequence or of the chunk
        log_decay = between[:, torch.arange(1, k + 1, device=origin.device), origin].T
        carried = (seq == pack.seq[c0 - 1]) & (c0 > 0)
        if bug == "D9" and c0 and pack.starts[seq[0]] == c0:
            carried = seq == seq[0]
        entering = torch.where(carried[:, None, None, None], carry, h0[seq])

        is_causal = tokens.x.new_ones(k, k, dtype=torch.bool).tril()
        same_sequence = seq[:, None] == seq
        end_rows = torch.cat([torch.nonzero(pack.is_last[rows])[:, 0], torch.tensor([k - 1], device=seq.device)])
        state_mask = (is_causal & same_sequence)[end_rows]
        if bug == "D5":
            state_mask[-1] = True
        chunk_states = states(part, decays(between[:, end_rows + 1, 1:], state_mask))
        if bug == "D14" and len(pack.starts) > 2:
            missing_exp = torch.where(state_mask, between[:, end_rows + 1, 1:], 0).detach()
            chunk_states = states(part.constant_b(), decays(between[:, end_rows + 1, 1:], state_mask))
            chunk_states = chunk_states + backward_only(
                einsum("hrj,jhp,jhn->rhpn", missing_exp, part.x.detach(), part.B)
            )
        end_decay = log_decay[end_rows].detach() if bug == "D13" and k < chunk else log_decay[end_rows]
        leaving = chunk_states + end_decay.exp()[..., None, None] * entering[end_rows]
        if bug == "D8" and not carried[-1]:
            leaving = torch.cat([leaving[:-1], leaving[-1:] + between[:, -1, :1, None].exp() * carry])
        ends.append(seq[end_rows[:-1]])
        stored_states = (
            torch.where(carried[end_rows, None, None, None], chunk_states, leaving) if bug == "D11" else leaving
        )
        finals.append(stored_states[:-1])

        if bug == "D3":
            entering = torch.where(carried[:, None, None, None], leaving[-1], entering)
        if bug == "D4" and c0:
            entering, log_decay = carry.expand_as(entering), between[:, 1:, 0].T
        if bug == "D6":
            log_decay = log_decay - part.la
        if bug == "D15":
            log_decay = torch.where((pack.starts[seq] > c0)[:, None], between[:, 1:, 0].T, log_decay)
        if bug == "D16" and c0 // chunk >= len(pack.starts) - 1:
            entering = torch.where(carried[:, None, None, None], 0, entering)
        visible = is_causal.tril(-1) if bug == "D7" else is_causal
        L = decays(between[:, 1:, 1:], visible if bug == "D2" else visible & same_sequence, bug)
        ys.append(outputs(part, L, log_decay, entering, bug))
        carry = leaving[-1]
    return torch.cat(ys), h0.index_copy(0, torch.cat(ends), torch.cat(finals))


def sequence_grid(
    tokens: SsdTokens, h0: Tensor, pack: SsdPack, *, chunk: int = CHUNK, summation: Sums = differences
) -> tuple[Tensor, Tensor]:
    """`pack_grid` with chunks counted from the start of each sequence, padded to one shape; states enter as carries."""
    is_causal = h0.new_ones(chunk, chunk, dtype=torch.bool).tril()
    ys, finals = [tokens.x[:0]], []
    for start, length, entering in zip(pack.starts.tolist(), pack.lengths.tolist(), h0.unbind(), strict=True):
        carry = entering
        for c0 in range(start, start + length, chunk):
            k = min(chunk, start + length - c0)
            part = tokens[c0 : c0 + k].padded_to(chunk)
            between = summation(part.la)
            L, log_decay = decays(between[:, 1:, 1:], is_causal), between[:, 1:, 0].T
            ys.append(outputs(part, L, log_decay, carry.expand(chunk, *carry.shape))[:k])
            carry = states(part, L[:, -1:])[0] + log_decay[-1].exp()[:, None, None] * carry
        finals.append(carry)
    return torch.cat(ys), torch.stack(finals)


def recurrence(tokens: SsdTokens, h0: Tensor, pack: SsdPack) -> tuple[Tensor, Tensor]:
    """`pack_grid`, row by row."""
    ys, finals = [tokens.x[:0]], []
    rows = zip(tokens.la.exp().unbind(), tokens.x.unbind(), tokens.B.unbind(), tokens.C.unbind(), strict=True)
    for length, entering in zip(pack.lengths.tolist(), h0.unbind(), strict=True):
        h = entering
        for a, x, B, C in islice(rows, length):
            h = a[:, None, None] * h + x[:, :, None] * B[:, None]
            ys.append((h * C[:, None]).sum(-1)[None])
        finals.append(h)
    return torch.cat(ys), torch.stack(finals)


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


def by_head(x: Tensor, heads: int) -> Tensor:
    """B or C [t, g, n] for each head: [t, h, n]."""
    return x[:, :, None].expand(-1, -1, heads // x.shape[1], -1).flatten(1, 2)


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    dt_softplus: bool = False,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    scan: Callable[..., tuple[Tensor, Tensor]] = pack_grid,
    bug: str = "",
) -> Tensor | tuple[Tensor, Tensor]:
    """Op `ssd`, computing in fp32 (fp64 for fp64) with the given scan, with the named bug."""
    (t, heads, p), n = x.shape, B.shape[2]
    acc = torch.float64 if x.dtype == torch.float64 else torch.float32
    pack = SsdPack.from_cu_seqlens(cu_seqlens, t)
    token_mask = (pack.seq < len(pack.starts) - 1)[:, None, None]
    u, B, C = (torch.where(token_mask, v, 0).to(acc) for v in (x, B, C))
    step = torch.where(token_mask[:, 0], dt, 0).to(acc)
    step = step if dt_bias is None else step + dt_bias
    step = softplus(step) if dt_softplus else step
    h0 = A.new_zeros(len(pack.starts) - 1, heads, p, n) if initial_states is None else initial_states
    h0 = torch.cat([h0.to(acc), A.new_zeros(1, heads, p, n, dtype=acc)])
    tokens = SsdTokens(step * A, step[..., None] * u, by_head(B, heads), by_head(C, heads))
    y, final = scan(tokens, h0, pack, bug=bug) if bug else scan(tokens, h0, pack)
    y = y if D is None else y + (D[:, None] if D.ndim == 1 else D) * u
    if z is not None:
        z = torch.where(token_mask, z, 0).to(acc)
        y = y * z * sigmoid(z)
    y = torch.where(token_mask, y, 0).to(x)
    return (y, final[:-1]) if return_final_states else y


FORMS: dict[str, dict[str, Any]] = {
    "correct": {},
    "chunk8": {"scan": partial(pack_grid, chunk=8)},
    "chunk32": {"scan": partial(pack_grid, chunk=32)},
    "own_grid": {"scan": sequence_grid},
    "one_by_one": {"scan": recurrence},
    "direct": {"scan": partial(pack_grid, summation=sums)},
    "quadratic": {"scan": partial(pack_grid, summation=sums, chunk=2**31)},
}

__getattr__ = kernel_lookup(ssd, FORMS, bug_names("D", 18))
