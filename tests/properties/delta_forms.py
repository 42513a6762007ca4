"""Correct forms of the delta rule, in other orders of summation than the reference, and with operands rounded as in
kernels that are built on matrix products."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from packproof.base.signatures import SIGNATURES
from packproof.properties.declarations.promises import Promises
from packproof.refs import gated, segsum, segsum_unstable
from packproof.refs.delta_rule import delta_recurrence, run_delta_rule
from tests.properties.orders_of_summation import ORDERS, FactorsOfSums, Order, decays_of_sums

CHUNK = 16
CUMSUM = Promises("sequence", CHUNK, "fp32", cumsum=True)
PLAIN = Promises(compute="fp32")


def form(op: str, recurrence: gated.GatedRecurrence) -> Callable[..., Any]:
    """A kernel of an op whose sequences run by a recurrence."""

    def kernel(*, cu_seqlens: Tensor, scale: float | None = None, **given: Any) -> Any:
        signature = SIGNATURES[op]
        options = {name: given.pop(name, False) for name in signature.options}
        tensors = {name: given.pop(name, None) for name in signature.inputs}
        tensors = {n: x for n, x in tensors.items() if x is not None or n == "initial_states"}
        assert not given
        return run_delta_rule(recurrence, signature, cu_seqlens=cu_seqlens, scale=scale, **tensors, **options)

    return kernel


def by_matrices(S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """S = (I - β k kᵀ) exp(g) S + β k vᵀ, each transition as a matrix."""
    ys = [v[:0]]
    unit = torch.eye(k.shape[-1], dtype=v.dtype)
    for t in range(len(v)):
        carries = unit - beta[t][:, None, None] * k[t][:, :, None] * k[t][:, None]
        S = carries @ (g[t].exp()[..., None] * S) + (beta[t][:, None] * k[t])[:, :, None] * v[t][:, None]
        ys.append((q[t][:, None] @ S)[:, 0][None])
    return torch.cat(ys), S


def transposed(S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The state as (h, p, k), as in many kernels for decoding, its products from the last channel to the first."""
    S, ys = S.mT.flip(-1), [v[:0]]
    q, k, g = q.flip(-1), k.flip(-1), g.flip(-1)
    for t in range(len(v)):
        S = S * g[t].exp()[:, None]
        S = S + ((v[t] - (S @ k[t][..., None])[..., 0]) * beta[t][:, None])[..., None] * k[t][:, None]
        ys.append((S @ q[t][..., None])[..., 0][None])
    return torch.cat(ys), S.flip(-1).mT


class _ElevenBits(torch.autograd.Function):
    """Rounded to the precision of fp16, and so is the gradient, with exponents of any size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        fraction, exponent = torch.frexp(x)
        return torch.ldexp((fraction * 2**11).round() / 2**11, exponent)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _ElevenBits.forward(ctx, grads[0])


def eleven_bits(x: Tensor) -> Tensor:
    y: Tensor = _ElevenBits.apply(x)
    return y


def in_dtype(low: torch.dtype, x: Tensor) -> Tensor:
    return x.to(low).to(x.dtype)


def with_inverse(
    r: Callable[[Tensor], Tensor],
    differences: bool,
    S: Tensor,
    v: Tensor,
    q: Tensor,
    k: Tensor,
    g: Tensor,
    beta: Tensor,
) -> tuple[Tensor, Tensor]:
    """Chunks whose triangular matrix is inverted, u = T β v - (T β k) S. r: rounds operands of products; differences:
    decays are differences of cumulative sums."""
    sums, ys = segsum_unstable if differences else segsum, [v[:0]]
    for v_c, q_c, k_c, g_c, beta_c in zip(*(torch.split(x, CHUNK) for x in (v, q, k, g, beta)), strict=True):
        L = sums(pad(g_c.permute(1, 2, 0), (1, 0))).exp()
        from_S, within, to_end = L[:, :, 1:, 0].permute(2, 0, 1), L[:, :, 1:, 1:], L[:, :, -1]
        pairs = torch.einsum("ihc, hcij, jhc -> hij", k_c, within, k_c).tril(-1)
        unit = torch.eye(len(v_c), dtype=v.dtype).expand_as(pairs)
        inverse = r(torch.linalg.solve_triangular(unit + beta_c.mT[..., None] * pairs, unit, upper=False))
        keys = r(torch.einsum("hij, jhc -> ihc", inverse, r(beta_c[..., None] * k_c * from_S)))
        u = torch.einsum("hij, jhp -> ihp", inverse, r(beta_c[..., None] * v_c))
        u = r(u - torch.einsum("ihc, hcp -> ihp", keys, r(S)))
        scores = r(torch.einsum("ihc, hcij, jhc -> hij", q_c, within, k_c))
        from_before = torch.einsum("ihc, hcp -> ihp", r(q_c * from_S), r(S))
        ys.append(torch.einsum("hij, jhp -> ihp", scores, u) + from_before)
        written = r(to_end[..., 1:].permute(2, 0, 1) * k_c)
        S = to_end[..., :1] * S + torch.einsum("jhc, jhp -> hcp", written, u)
    return torch.cat(ys), S


def gradients_of_sums(
    r: Callable[[Tensor], Tensor],
    order: Order,
    S: Tensor,
    v: Tensor,
    q: Tensor,
    k: Tensor,
    g: Tensor,
    beta: Tensor,
) -> tuple[Tensor, Tensor]:
    """Chunks by differences; the gradient of g is q · dq - k · dk summed back over a chunk, as fla has it. r: rounds
    operands of products; order: in which gates, and their gradients, are summed."""
    ys = [v[:0]]
    for v_c, q_c, k_c, g_c, beta_c in zip(*(torch.split(x, CHUNK) for x in (v, q, k, g, beta)), strict=True):
        read, written, end = FactorsOfSums.apply(order, g_c)
        L = decays_of_sums(order, g_c).permute(2, 3, 0, 1)  # [h, c, n + 1, n + 1]; row 0 is the state
        from_S, within, to_end = L[:, :, 1:, 0].permute(2, 0, 1), L[:, :, 1:, 1:], L[:, :, -1]
        q_read, k_read, k_written = q_c * read, k_c * read, k_c * written
        pairs = torch.einsum("ihc, hcij, jhc -> hij", k_read, within, k_written).tril(-1)
        unit = torch.eye(len(v_c), dtype=v.dtype).expand_as(pairs)
        from_before = torch.einsum("ihc, hcp -> ihp", r(k_read * from_S), r(S))
        right = beta_c[..., None] * (v_c - from_before)
        matrix = unit + beta_c.mT[..., None] * pairs
        u = r(torch.linalg.solve_triangular(matrix, right.transpose(0, 1), upper=False).transpose(0, 1))
        scores = r(torch.einsum("ihc, hcij, jhc -> hij", q_read, within, k_written))
        from_before = torch.einsum("ihc, hcp -> ihp", r(q_read * from_S), r(S))
        ys.append(torch.einsum("hij, jhp -> ihp", scores, u) + from_before)
        to_last = r(to_end[..., 1:].permute(2, 0, 1) * k_written)
        S = end[..., None] * (to_end[..., :1] * S + torch.einsum("jhc, jhp -> hcp", to_last, u))
    return torch.cat(ys), S


def limited(recurrence: gated.GatedRecurrence) -> gated.GatedRecurrence:
    """A recurrence that takes gates of any strength by differences of a sum, to which no token adds more than it needs
    to forget all."""

    def of_limited(S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        return recurrence(S, v, q, k, g.clamp(min=-750), beta)

    return of_limited


RECURRENCES: dict[str, tuple[gated.GatedRecurrence, Promises]] = {
    "recurrent": (delta_recurrence, PLAIN),
    "matrices": (by_matrices, PLAIN),
    "transposed": (transposed, PLAIN),
    "chunks of 7": (partial(gated.chunkwise_recurrence, 7), PLAIN),
    "chunks of 64": (partial(gated.chunkwise_recurrence, 64), PLAIN),
    "inverse": (partial(with_inverse, torch.Tensor.clone, False), PLAIN),
    "inverse, differences": (limited(partial(with_inverse, torch.Tensor.clone, True)), CUMSUM),
    "gradients of sums": (limited(partial(gradients_of_sums, torch.Tensor.clone, ORDERS["sequential"])), CUMSUM),
}


ROUNDING: tuple[gated.GatedRecurrence, Promises] = (
    partial(with_inverse, partial(in_dtype, torch.bfloat16), False),
    Promises(),
)


def forms(op: str) -> dict[str, tuple[Callable[..., Any], Promises]]:
    return {name: (form(op, recurrence), promises) for name, (recurrence, promises) in RECURRENCES.items()}
