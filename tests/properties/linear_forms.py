"""Correct forms of linear attention and its gated kinds, in other orders of summation than the reference, and with
operands rounded as in kernels that are built on matrix products."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from packproof.base.arguments import finite_scale
from packproof.properties.declarations.promises import Promises
from packproof.refs import gated, segsum, segsum_unstable
from packproof.refs.linear_attention import linear_recurrence
from tests.properties.delta_forms import CHUNK, CUMSUM, PLAIN, in_dtype
from tests.properties.orders_of_summation import FactorsOfSums, Order, decays_of_sums


def form(op: str, recurrence: gated.GatedRecurrence) -> Callable[..., Any]:
    """A kernel of an op whose sequences run by a recurrence."""

    def kernel(
        *,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor | None = None,
        decay: Tensor | None = None,
        scale: float | None = None,
        **options: Any,
    ) -> Any:
        gate = gated.no_decay(v) if g is None else g[..., None]
        gate = gate if decay is None else decay[:, None].expand(len(v), -1, -1)
        return gated.run_over_pack(recurrence, q, k, v, gate, scale=finite_scale(op, scale, k.shape[-1]), **options)

    return kernel


def transposed(S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The state as (h, p, k), its products from the last channel to the first."""
    S, ys = S.mT.flip(-1), [v[:0]]
    q, k = q.flip(-1), k.flip(-1)
    for t in range(len(v)):
        S = S * g[t].exp()[:, None] + v[t][..., None] * k[t][:, None]
        ys.append((S @ q[t][..., None])[..., 0][None])
    return torch.cat(ys), S.flip(-1).mT


def masked(
    r: Callable[[Tensor], Tensor], differences: bool, S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    """Chunks as masked attention. r: rounds operands of products; differences: decays are differences of cumulative
    sums."""
    sums, ys = segsum_unstable if differences else segsum, [v[:0]]
    for v_c, q_c, k_c, g_c in zip(*(torch.split(x, CHUNK) for x in (v, q, k, g)), strict=True):
        L = sums(pad(g_c[..., 0].T, (1, 0))).exp()  # [h, n + 1, n + 1]; row 0 is the state
        scores = r(torch.einsum("ihc, jhc -> hij", q_c, k_c) * L[:, 1:, 1:])
        from_S = L[:, 1:, 0].T[..., None] * torch.einsum("ihc, hcp -> ihp", q_c, r(S))
        ys.append(torch.einsum("hij, jhp -> ihp", scores, v_c) + from_S)
        written = r(L[:, -1, 1:].T[..., None] * k_c)
        S = L[:, -1, 0, None, None] * S + torch.einsum("jhc, jhp -> hcp", written, v_c)
    return torch.cat(ys), S


def gradients_of_sums(
    r: Callable[[Tensor], Tensor], order: Order, S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    """Chunks by differences; the gradient of g is q · dq - k · dk summed back over a chunk, as fla has it. r: rounds
    operands of products; order: in which gates, and their gradients, are summed."""
    ys = [v[:0]]
    for v_c, q_c, k_c, g_c in zip(*(torch.split(x, CHUNK) for x in (v, q, k, g)), strict=True):
        read, written, end = FactorsOfSums.apply(order, g_c)
        L = decays_of_sums(order, g_c)[..., 0].permute(2, 0, 1)  # [h, n + 1, n + 1]; row 0 is the state
        q_read, k_written = q_c * read, k_c * written
        scores = r(torch.einsum("ihc, jhc -> hij", r(q_read), r(k_written)) * L[:, 1:, 1:])
        from_S = torch.einsum("ihc, hcp -> ihp", r(q_read * L[:, 1:, 0].T[..., None]), r(S))
        ys.append(torch.einsum("hij, jhp -> ihp", scores, v_c) + from_S)
        to_last = r(L[:, -1, 1:].T[..., None] * k_written)
        S = end[..., None] * (L[:, -1, 0, None, None] * S + torch.einsum("jhc, jhp -> hcp", to_last, v_c))
    return torch.cat(ys), S


def limited(recurrence: gated.GatedRecurrence) -> gated.GatedRecurrence:
    """A recurrence that takes gates of any strength by differences of a sum, as in `delta_forms`."""

    def of_limited(S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        return recurrence(S, v, q, k, g.clamp(min=-750))

    return of_limited


RECURRENCES: dict[str, tuple[gated.GatedRecurrence, Promises]] = {
    "recurrent": (linear_recurrence, PLAIN),
    "transposed": (transposed, PLAIN),
    "chunks of 7": (partial(gated.chunkwise_recurrence, 7), PLAIN),
    "chunks of 64": (partial(gated.chunkwise_recurrence, 64), PLAIN),
    "differences": (limited(partial(masked, torch.Tensor.clone, True)), CUMSUM),
}
ROUNDING: tuple[gated.GatedRecurrence, Promises] = (
    partial(masked, partial(in_dtype, torch.bfloat16), False),
    Promises(),
)


def forms(op: str) -> dict[str, tuple[Callable[..., Any], Promises]]:
    return {name: (form(op, recurrence), promises) for name, (recurrence, promises) in RECURRENCES.items()}
