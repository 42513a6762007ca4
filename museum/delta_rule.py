"""Packed linear attention and delta rules in plain torch, in chunks by the WY form, as in kernels.

The kernels of three ops are correct; L1 to L16 have one bug each. A chunk writes k uᵀ, with u = v in retention and
simple GLA, and (I + A) u = β (v - memory) in the delta rule.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, einsum
from torch.nn.functional import pad

from packproof.museum.custom_backward import Outputs
from packproof.museum.variants import bug_names
from packproof.refs import segsum

CHUNK = 16
SPECULATED = 3  # tokens that a server drafts

_offsets: dict[int, tuple[Tensor, list[int]]] = {}


@dataclass(frozen=True)
class DeltaTokens:
    """Tokens of a pack, a sequence or a chunk: [t, h, ·], q and k for each value head, g [t, h, 1 or k]."""

    v: Tensor
    q: Tensor
    k: Tensor
    g: Tensor
    beta: Tensor | None

    def __getitem__(self, rows: slice) -> "DeltaTokens":
        v, q, k, g = (x[rows] for x in (self.v, self.q, self.k, self.g))
        return DeltaTokens(v, q, k, g, None if self.beta is None else self.beta[rows])

    def __len__(self) -> int:
        return len(self.v)


class _HalfOfATile(torch.autograd.Function):
    """L1: the gradient of a full tile is the gradient of its first half, twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return d[: len(d) // 2].repeat(2, *[1] * (d.ndim - 1))


class _DecayOfTheFirstHead(torch.autograd.Function):
    """L3: decay · S, the gradient of S by the decay of head 0: the pointer lacks the head."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, S: Tensor) -> Tensor:
        ctx.save_for_backward(decay, S)
        return decay * S

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor]:
        decay, S = ctx.saved_tensors
        return (d * S).sum(-1, keepdim=True), decay[:1] * d


class _SharedByAllHeads(torch.autograd.Function):
    """L9: the final state. Its gradient for the gates is one sum over all heads and tokens."""

    @staticmethod
    def forward(ctx: Any, S: Tensor, g: Tensor) -> Tensor:
        ctx.save_for_backward(S, g)
        return S.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor]:
        S, g = ctx.saved_tensors
        return d, (d * S).sum().expand_as(g)


def run_chunk(rows: DeltaTokens, S: Tensor, bug: str) -> tuple[Tensor, Tensor]:
    """y [n, h, p] before its scale, and the state [h, k, p] at the end of the chunk."""
    if bug == "L1" and len(rows) == CHUNK and rows.beta is not None:
        g, beta = (_HalfOfATile.apply(x) for x in (rows.g, rows.beta))  # type: ignore[no-untyped-call]
        rows = DeltaTokens(rows.v, rows.q, rows.k, g, beta)
    L = segsum(pad(rows.g.permute(1, 2, 0), (1, 0))).exp()  # [h, c, n + 1, n + 1]; row 0 is the state
    from_S, within, to_end = L[:, :, 1:, 0], L[:, :, 1:, 1:], L[:, :, -1]
    u = rows.v
    if rows.beta is not None:
        keys = rows.k.detach() if bug == "L2" and len(rows) > CHUNK else rows.k
        A = rows.beta.T[..., None] * einsum("ihc, hcij, jhc -> hij", keys, within, keys).tril(-1)
        identity = torch.eye(len(u)).to(A)
        inverse = torch.linalg.solve_triangular(identity + A, identity, upper=False)
        memory = einsum("ihc, hci, hcp -> ihp", rows.k, from_S, S)
        u = einsum("hij, jhp -> ihp", inverse, rows.beta[..., None] * (u - memory))
    scores = einsum("ihc, hcij, jhc -> hij", rows.q, within, rows.k)
    y = einsum("hij, jhp -> ihp", scores, u) + einsum("ihc, hci, hcp -> ihp", rows.q, from_S, S)
    decayed_state = _DecayOfTheFirstHead.apply(to_end[..., :1], S) if bug == "L3" else to_end[..., :1] * S  # type: ignore[no-untyped-call]
    return y, decayed_state + einsum("hcj, jhc, jhp -> hcp", to_end[..., 1:], rows.k, u)


def run_sequence(
    pack: DeltaTokens, start: int, end: int, S: Tensor, entering_states: list[Tensor], bug: str
) -> tuple[Tensor, Tensor]:
    """y and the final state of one sequence.

    entering_states: of all chunks of the pack so far.
    """
    size = 2 * CHUNK if bug == "L2" and end - start >= 2 * CHUNK else CHUNK
    ys = [pack.v[:0]]
    for i, chunk_start in enumerate(range(start, end, size)):
        live = min(size, end - chunk_start)
        rows = pack[chunk_start : chunk_start + (size if bug in ("L5", "L10") else live)]
        if bug == "L5":  # rows of other sequences enter, times 0
            mask = (torch.arange(len(rows)) < live).to(rows.v)
            beta = None if rows.beta is None else rows.beta * mask[:, None]
            v, q, k, g = (x * mask[:, None, None] for x in (rows.v, rows.q, rows.k, rows.g))
            rows = DeltaTokens(v, q, k, g, beta)
        if bug == "L12" and i > 2:
            S = torch.zeros_like(S)
            for earlier in (chunk_start - 2 * size, chunk_start - size):
                S = run_chunk(pack[earlier : earlier + size], S, bug)[1]
        entering_states.append(S)
        if bug == "L11":  # as many chunks into the pack as this one is into its sequence
            S = entering_states[i]
        y, S = run_chunk(rows, S, bug)
        if bug == "L6" and len(rows) == 1 and len(pack) > 1:  # the gate of row 1 steadies the exponents of a tile
            y = y * torch.nan
        if bug == "L13" and live < size:
            y = torch.empty_like(y)
        ys.append(y[:live])
    return torch.cat(ys), S


def run_pack(
    pack: DeltaTokens,
    cu_seqlens: Tensor,
    scale: float | None,
    states: Tensor | None,
    return_final_states: bool,
    bug: str,
) -> Outputs:
    """An op, with one key head per value head, in the compute dtype."""
    factor = pack.k.shape[2] ** -0.5 if scale is None else scale
    shape = (pack.v.shape[1], pack.k.shape[2], pack.v.shape[2])
    offsets = cu_seqlens.tolist()
    if bug == "L8":
        offsets = _offsets.setdefault(id(cu_seqlens), (cu_seqlens, offsets))[1]
    ys, finals, entering_states = [pack.v[:0]], [pack.v.new_zeros(0, *shape)], list[Tensor]()
    for j, (start, end) in enumerate(pairwise(offsets)):
        entering = pack.v.new_zeros(shape) if states is None else states[j % 2 if bug == "L14" else j].to(pack.v)
        y, final = run_sequence(pack, start, end, entering, entering_states, bug)
        if bug == "L7" and end - start == 1 + SPECULATED:
            final = entering
        if bug == "L15" and start == end and start < len(pack):
            final = run_chunk(pack[start : start + 1], final, bug)[1]
        if bug == "L9":
            final = _SharedByAllHeads.apply(final, pack.g)  # type: ignore[no-untyped-call]
        ys.append(factor * y)
        finals.append(final[None])
    slack = len(pack) - offsets[-1]
    allocate = torch.empty if bug == "L16" else torch.zeros
    y = torch.cat([*ys, allocate(slack, *pack.v.shape[1:], dtype=pack.v.dtype, device=pack.v.device)])
    return (y, torch.cat(finals)) if return_final_states else y


def prepare_tokens(v: Tensor, q: Tensor, k: Tensor, g: Tensor, beta: Tensor | None, live: int, bug: str) -> DeltaTokens:
    """The tokens in the compute dtype, zero in slack, with one head of q and k per value head."""
    acc = torch.promote_types(v.dtype, torch.float32)
    v, q, k, g = (pad(x[:live].to(acc), (0, 0, 0, 0, 0, len(x) - live)) for x in (v, q, k, g))
    beta = None if beta is None else pad(beta[:live].to(acc), (0, 0, 0, len(beta) - live))
    heads = torch.arange(v.shape[1], device=v.device) // (v.shape[1] // k.shape[1])
    if bug == "L4":  # by the number of the value head, past the last key head
        q, k = (torch.cat([x, torch.full_like(v[:, :, :1], torch.nan).expand(-1, -1, x.shape[2])], 1) for x in (q, k))
        heads = torch.arange(v.shape[1], device=v.device)
    return DeltaTokens(v, q[:, heads], k[:, heads], g, beta)


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: bool = False, bug: str = "",
) -> Outputs:  # fmt: skip
    """Op `delta_rule`."""
    pack = prepare_tokens(v, q, k, torch.zeros_like(v[..., :1]), beta, int(cu_seqlens[-1]), bug)
    return round_output(v, run_pack(pack, cu_seqlens, scale, initial_states, return_final_states, bug))


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: bool = False, bug: str = "",
) -> Outputs:  # fmt: skip
    """Op `gated_delta_rule`, with gate and beta already computed."""
    pack = prepare_tokens(v, q, k, g[..., None], beta, int(cu_seqlens[-1]), bug)
    return round_output(v, run_pack(pack, cu_seqlens, scale, initial_states, return_final_states, bug))


def kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: bool = False, bug: str = "",
) -> Outputs:  # fmt: skip
    """Op `kda`, with gate and beta already computed."""
    pack = prepare_tokens(v, q, k, g, beta, int(cu_seqlens[-1]), bug)
    return round_output(v, run_pack(pack, cu_seqlens, scale, initial_states, return_final_states, bug))


def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: bool = False, bug: str = "",
) -> Outputs:  # fmt: skip
    """Op `simple_gla`."""
    pack = prepare_tokens(v, q, k, g[..., None], None, int(cu_seqlens[-1]), bug)
    return round_output(v, run_pack(pack, cu_seqlens, scale, initial_states, return_final_states, bug))


def retention(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, *, cu_seqlens: Tensor, scale: float | None = None,
    initial_states: Tensor | None = None, return_final_states: bool = False, bug: str = "",
) -> Outputs:  # fmt: skip
    """Op `retention`; lightning attention is the same."""
    pack = prepare_tokens(v, q, k, decay[:, None].expand(len(v), -1, -1), None, int(cu_seqlens[-1]), bug)
    return round_output(v, run_pack(pack, cu_seqlens, scale, initial_states, return_final_states, bug))


def round_output(v: Tensor, outputs: Outputs) -> Outputs:
    """Round y to v's dtype; leave states as they are."""
    return (outputs[0].to(v), outputs[1]) if isinstance(outputs, tuple) else outputs.to(v)


OPS: Mapping[str, Callable[..., Outputs]] = {
    op.__name__: op for op in (delta_rule, gated_delta_rule, kda, simple_gla, retention)
}
BUGS = bug_names("L", 16)


def __getattr__(name: str) -> Callable[..., Outputs]:
    """`kda_L3` is kda with bug L3."""
    op, _, bug = name.rpartition("_")
    if op not in OPS or bug not in BUGS:
        raise AttributeError(f"the museum's delta rules have no kernel {name!r}")
    return partial(OPS[op], bug=bug)
