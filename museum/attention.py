"""Packed attention in plain torch, written as kernels are (blocks, online softmax): 5 correct, 8 incorrect."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, einsum
from torch.nn.functional import pad

from packproof.museum.rows import sequence_of_rows
from packproof.museum.variants import bug_names, kernel_lookup

BLOCK = 16


@dataclass(frozen=True)
class Packing:
    """The rows of a pack, with slack as one more sequence at the end."""

    cu: Tensor
    """Offsets (s + 2,), slack included."""
    sequence: Tensor
    """The sequence of each row (t,)."""
    position: Tensor
    """The position of each row among the keys (t,)."""

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: Tensor, rows: int, keys: "Packing | None" = None) -> "Packing":
        row = torch.arange(rows, device=cu_seqlens.device)
        cu = torch.cat([cu_seqlens.long(), torch.tensor([rows], device=cu_seqlens.device)])
        sequence = sequence_of_rows(cu, row)
        return cls(cu, sequence, row if keys is None else row + (keys.cu - cu)[sequence + 1])

    @property
    def token_mask(self) -> Tensor:
        """[t, 1, 1]: not slack."""
        return (torch.arange(len(self.position), device=self.cu.device) < self.cu[-2])[:, None, None]


@dataclass(frozen=True)
class Rule:
    """The options of the scores."""

    left_reach: int
    """Number of visible keys before the position of a query."""
    right_reach: int
    """Number of visible keys after it."""
    softcap: float
    """Cap of the scores, 0 for none."""
    sinks: Tensor | None
    """Sink of each head [h]."""

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        return (j >= i - self.left_reach) & (j <= i + self.right_reach)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """[h, i, k] and [h, j, k] to [h, i, j]."""
        scores = einsum("hik,hjk->hij", q, k)
        return self.softcap * (scores / self.softcap).tanh() if self.softcap else scores


class Softmax:
    """Online softmax of one block of queries [h, i, k] over blocks of keys [h, j, k] and values [h, j, v]."""

    def __init__(self, q: Tensor, v: Tensor, rule: Rule, bug: str) -> None:
        self.q, self.rule, self.bug = q, rule, bug
        self.max = q.new_full(q.shape[:2], -torch.inf)
        self.sum = q.new_zeros(q.shape[:2])
        self.out = q.new_zeros(*q.shape[:2], v.shape[-1])
        if rule.sinks is not None:
            sinks = rule.sinks[:, None].expand(q.shape[:2])
            self.max = torch.zeros_like(sinks) if bug == "A3" else sinks.detach()
            self.sum = (sinks - self.max).exp()

    def add(self, k: Tensor, v: Tensor, visible: Tensor) -> None:
        scores = torch.where(visible, self.rule.scores(self.q, k), -torch.inf)
        top = torch.maximum(self.max, scores.detach().amax(-1))
        if self.bug == "A3":
            top = torch.zeros_like(top)
        if self.bug == "A8":
            top = top[:1].expand_as(top)
        shift = top if self.bug == "A6" else torch.where(top == -torch.inf, 0, top)
        p = (scores - shift[..., None]).exp()
        rescale = torch.ones_like(top) if self.bug in ("A3", "A5") else (self.max - shift).exp()
        self.sum = self.sum * rescale + p.sum(-1)
        self.out = self.out * rescale[..., None] + einsum("hij,hjv->hiv", p, v)
        self.max = top

    @property
    def result(self) -> tuple[Tensor, Tensor]:
        denominator = torch.where(self.sum > 0, self.sum, 1) if self.bug != "A6" else self.sum
        one_query = self.bug == "A7" and self.q.shape[1] == 1
        return self.out / (denominator.flip(0) if one_query else denominator)[..., None], self.max + denominator.log()


def pack_grid(
    q: Tensor, k: Tensor, v: Tensor, queries: Packing, keys: Packing, rule: Rule, *, block: int = BLOCK, bug: str = ""
) -> tuple[Tensor, Tensor]:
    """Heads first: q [h, t, k], k [h, u, k], v [h, u, v] to [h, t, v] and [h, t], blocks from the start of the pack."""
    out = [(v[:, :0], q[:, :0, 0])]
    for q0 in range(0, q.shape[1], block):
        rows = slice(q0, q0 + block)
        query_sequences = queries.sequence[rows]
        softmax = Softmax(q[:, rows], v, rule, bug)
        for k0 in range(0, k.shape[1], block):
            cols = slice(k0, k0 + block)
            key_sequences = keys.sequence[cols]
            nearest = key_sequences[0] if bug == "A1" else key_sequences[-1]
            mask = rule.visible(queries.position[rows, None], keys.position[cols])
            if nearest < query_sequences[0] or key_sequences[0] > query_sequences[-1] or not mask.any():
                continue
            if not (bug == "A2" and k0 < q0 and key_sequences[0] == query_sequences[0]):
                mask = mask & (query_sequences[:, None] == key_sequences)
            softmax.add(k[:, cols], v[:, cols], mask)
        out.append(softmax.result)
    return concatenate_parts(out)


def sequence_grid(
    q: Tensor, k: Tensor, v: Tensor, queries: Packing, keys: Packing, rule: Rule, *, block: int = BLOCK
) -> tuple[Tensor, Tensor]:
    """`pack_grid` with blocks counted from the start of each sequence, all padded to one shape."""
    out = [(v[:, :0], q[:, :0, 0])]
    ends = (x for cu in (queries.cu, keys.cu) for x in (cu.tolist(), cu.tolist()[1:]))
    for q_start, q_end, k_start, k_end in zip(*ends, strict=False):
        n, m = q_end - q_start, k_end - k_start
        k_blocks, v_blocks = (padded_blocks(x[:, k_start:k_end], block) for x in (k, v))
        rows, cols = (torch.split(torch.arange(-x, -x % block, device=q.device), block) for x in (n, m))
        for i, q_i in enumerate(padded_blocks(q[:, q_start:q_end], block) if n else ()):
            softmax = Softmax(q_i, v, rule, "")
            for j, (k_j, v_j) in enumerate(zip(k_blocks, v_blocks, strict=True) if m else ()):
                softmax.add(k_j, v_j, rule.visible(rows[i][:, None], cols[j]) & (cols[j] < 0))
            y, lse = softmax.result
            out.append((y[:, : n - i * block], lse[:, : n - i * block]))
    return concatenate_parts(out)


def padded_blocks(x: Tensor, block: int) -> tuple[Tensor, ...]:
    """Split the rows into blocks; pad the last one with zeros."""
    return torch.split(pad(x, (0, 0, 0, -x.shape[1] % block)), block, 1)


def masked_softmax(
    q: Tensor, k: Tensor, v: Tensor, queries: Packing, keys: Packing, rule: Rule
) -> tuple[Tensor, Tensor]:
    """`pack_grid` as one masked softmax in two passes over the whole pack."""
    mask = rule.visible(queries.position[:, None], keys.position) & (queries.sequence[:, None] == keys.sequence)
    sees_key = mask.any(-1)  # a softmax over no key is NaN, and so are its derivatives
    scores = torch.where(mask | ~sees_key[:, None], rule.scores(q, k), -torch.inf)
    lse = scores.logsumexp(-1)
    y = torch.where(mask, scores.softmax(-1), 0) @ v
    if rule.sinks is None:
        return y, torch.where(sees_key, lse, -torch.inf)
    total = torch.logaddexp(lse, rule.sinks[:, None])
    share = (lse - total).exp()  # not a sigmoid: its derivative would lose the share of a small sink
    return y * share[..., None], torch.where(sees_key, total, rule.sinks[:, None])


def concatenate_parts(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    ys, lses = zip(*parts, strict=True)
    return torch.cat(ys, 1), torch.cat(lses, 1)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    attend: Callable[..., tuple[Tensor, Tensor]] = pack_grid,
    bug: str = "",
) -> Tensor | tuple[Tensor, Tensor]:
    """Op `attention`, computing in fp32 (fp64 for fp64) in the given order, with the named bug."""
    (t, heads, width), (u, groups, _) = q.shape, k.shape
    acc = torch.float64 if q.dtype == torch.float64 else torch.float32
    keys = Packing.from_cu_seqlens(cu_seqlens if cu_seqlens_k is None else cu_seqlens_k, u)
    queries = Packing.from_cu_seqlens(cu_seqlens, t, keys)
    scale = max(width, 1) ** -0.5 if softmax_scale is None else softmax_scale
    left_reach, right_reach = (t + u if reach < 0 else reach for reach in window_size)
    right_reach = (1 if bug == "A4" else 0) if causal else right_reach
    rule = Rule(left_reach, right_reach, softcap, None if sinks is None else sinks.to(acc))
    packed = ((q, queries), (k, keys), (v, keys))
    heads_first = [torch.where(pack.token_mask, x, 0).to(acc).transpose(0, 1) for x, pack in packed]
    heads_first[0] = heads_first[0] * scale
    heads_first[1:] = (x.repeat_interleave(heads // groups, 0) for x in heads_first[1:])
    y, lse = attend(*heads_first, queries, keys, rule, **({"bug": bug} if bug else {}))
    y = torch.where(queries.token_mask, y.transpose(0, 1), 0).to(q)
    return (y, torch.where(queries.token_mask[:, 0], lse.T, 0)) if return_lse else y


FORMS: dict[str, dict[str, Any]] = {
    "correct": {},
    "block8": {"attend": partial(pack_grid, block=8)},
    "block32": {"attend": partial(pack_grid, block=32)},
    "own_grid": {"attend": sequence_grid},
    "two_pass": {"attend": masked_softmax},
}

__getattr__ = kernel_lookup(attention, FORMS, bug_names("A", 8))
