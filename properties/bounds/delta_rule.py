"""The rounding events of the delta rule, gated or not, for `bounds.drawn_roundings`.

An error E of the state S is carried on by the same matrices as the state: E_t = (I - β k kᵀ) exp(g) E_{t-1} + δ. Their
norm is at most 1 where β |k|² is at most 2, so errors fade as the memory does. Absolute values would grow by 1 + β |k|²
with each token. The events δ of a token, each of a random sign, in units of roundoff:

    S' = exp(g) S         |S'| (1 + |g|) + 2^-100 |S|: the exponent is rounded too
    u = β (v - S'ᵀ k)     |β| (|v| + M'ᵀ |k|), twice; M' = exp(g) M
    S = S' + k uᵀ         |S| / 8: the rounding of partial sums, as in `running_error`
    y = scale Sᵀ q        scale Mᵀ |q|

M bounds the joint error of the terms k uᵀ of the state, each with an error of its own sign. It decays like S and adds
each term by the root of the sum of squares. It takes the terms as they were written, not a bound of them. So it covers
three forms: the recurrent one, the chunked one, where u solves a triangular system of those terms, and products of
rounded operands. M is at least |S|. No sum is longer than a chunk, so M forgets terms from some 128 tokens ago. The
backward pass is the same recurrence for the gradient G of the state, from the last token to the first, with terms N.

A rounded operand has the precision of its dtype, and its range. The spacing of fp16 does not shrink below 2^-14, so an
operand errs as if it were at least 2^-14 (`Signs.smallest_normal`), times the other factor. Under hard decay a key
times its remaining decay falls below 2^-14 and is flushed to zero, while the fp32 state still holds it. So M and N are
at least 2^-14, and at least 2^-14 times the terms written with such an operand (root of the sum of squares): U of u in
the state, V of dy in its gradient, K and Q of keys and queries in the products with a score. A state that has decayed
below 2^-14 may be lost entirely, and its budget judges nothing (`oracle.is_vacuous`).

A kernel that promises `cumsum` forms decays as differences of running sums over a chunk (`running_sums`). The error E
of a sum raises the events of u, of y and of the gradients read from a state. Such a kernel also finds the gradient of
g from the gradients of its sums: it adds q · dq - k · dk over a chunk, and each of them is rounded with a random sign.
The errors of decays are the same in q_i · dq_i and in k_j · dk_j. They remain where the gradient of g does: in the
pairs with t between them.

Sums of gates are fp32, whatever operands are rounded to. So B_op of such a kernel is drawn by itself, without E, and
with the terms that the gradient of g sums (`gate_gradients`). One B for both would multiply the roundings of 16-bit
operands by 1 + E, and exceed the values beside strong gates.
"""

# mypy: allow-untyped-calls

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from packproof.base.arguments import finite_scale
from packproof.properties.bounds.gate_gradients import RunningSums, matvec, transposed_matvec
from packproof.properties.bounds.magnitude_ops import (
    MAX_EXPONENT,
    UNDERFLOW,
    clamped_exponent,
)
from packproof.properties.bounds.signs import Signs
from packproof.properties.bounds.with_derivative import with_derivative
from packproof.properties.declarations.promises import Promises
from packproof.refs.delta_rule import L2_EPSILON
from packproof.refs.gated import run_over_pack
from packproof.refs.recurrence import SOFTPLUS_LINEAR

_PARTIAL_SUM_ERROR = 1 / 8
_MEMORY_PER_TOKEN = 1 - 1 / 128
_TWO_EVENTS = 2**0.5  # of the chunked form: the right-hand side of the triangular system, and its solution


def delta_rule(promises: Promises, signs: Signs) -> Callable[..., Any]:
    """Make the delta rule, gated or not, with roundings of random signs, for a kernel with these promises."""
    return _delta_rule(signs, RunningSums(promises) if promises.cumsum else None)


def rounded_operands(promises: Promises, signs: Signs) -> Callable[..., Any]:
    """As `delta_rule`, for the roundings of operands alone: the sums of gates are exact."""
    return _delta_rule(signs, RunningSums(promises, exact=True) if promises.cumsum else None)


def _delta_rule(signs: Signs, running_sums: RunningSums | None) -> Callable[..., Any]:
    def function(
        q: Tensor, k: Tensor, v: Tensor, *, beta: Tensor, g: Tensor | None = None, A_log: Tensor | None = None,
        dt_bias: Tensor | None = None, qk_l2norm: bool = False, beta_sigmoid: bool = False,
        scale: float | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        factor = finite_scale("delta_rule", scale, k.shape[-1])

        def recurrence(S: Tensor, v: Tensor, q: Tensor, k: Tensor, beta: Tensor, *g: Tensor) -> tuple[Tensor, Tensor]:
            if qk_l2norm:
                q, k = (_l2norm(signs, x) for x in (q, k))
            beta = _Sigmoid.apply(signs, beta) if beta_sigmoid else beta
            gate = _gate(signs, g[0], A_log, dt_bias) if g else v.new_zeros(*v.shape[:2], 1)
            exponent = clamped_exponent(gate.detach().abs())
            sums = running_sums.errors_of_gates(exponent) if running_sums else torch.zeros_like(exponent)
            y_and_state: tuple[Tensor, Tensor] = _DeltaRule.apply(
                signs, running_sums, factor, S, v, q, k, gate, beta, sums
            )
            return y_and_state

        gates = () if g is None else (g,)
        return run_over_pack(recurrence, q, k, v, beta, *gates, scale=1.0, **options)

    return function


def _l2norm(signs: Signs, x: Tensor) -> Tensor:
    norm = signs.noisy((signs.noisy(x.square()).sum(-1, keepdim=True) + L2_EPSILON).sqrt())
    return signs.noisy(signs.noisy(x) / signs.noisy(norm.expand_as(x)))


def _gate(signs: Signs, g: Tensor, A_log: Tensor | None, dt_bias: Tensor | None) -> Tensor:
    g = with_derivative(g.clamp(min=-MAX_EXPONENT), g)  # so that no rounding of it is infinite
    if dt_bias is not None:
        g = signs.noisy(signs.noisy(g) + signs.noisy(dt_bias.expand_as(g)))
    if A_log is not None:
        rate = signs.noisy(A_log if g.ndim == 2 else A_log[:, None]).exp().expand_as(g)
        g = -signs.noisy(signs.noisy(rate) * signs.noisy(softplus(signs.noisy(g), threshold=SOFTPLUS_LINEAR)))
    return g[..., None] if g.ndim == 2 else g


class _Sigmoid(torch.autograd.Function):
    """σ with the slope σ (1 - σ) computed from σ itself: where σ is near 1, 1 - σ loses digits."""

    @staticmethod
    def forward(ctx: Any, signs: Signs, x: Tensor) -> Tensor:
        y = x.sigmoid()
        ctx.signs, ctx.y = signs, y
        return signs.rounded(y, y)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dy,), y = grads, ctx.y
        return None, ctx.signs.rounded(dy * y * (1 - y), dy.abs() * y)


class _DeltaRule(torch.autograd.Function):
    """One sequence: y with its scale, and the final state. Vectors and matrices are (h, k) and (h, k, p)."""

    @staticmethod
    def forward(
        ctx: Any, signs: Signs, running_sums: RunningSums | None, scale: float, S: Tensor, v: Tensor, q: Tensor,
        k: Tensor, g: Tensor, beta: Tensor, sums: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        M, ys, saved = S.abs(), [], []
        U, K, smallest_normal = torch.zeros_like(S[:, 0]), torch.zeros_like(S[:, :, 0]), signs.smallest_normal
        decays, row_factors = g.exp(), 1 + sums.amax(-1, keepdim=True)
        for t in range(len(v)):
            decay, row_factor = decays[t][..., None], row_factors[t]
            decayed = signs.rounded(decay, _decay_terms(decay, g[t])) * S
            M_decayed = decay * M
            terms = v[t].abs() + transposed_matvec(M_decayed, k[t].abs() + smallest_normal)
            error = v[t] - transposed_matvec(decayed, k[t])  # v - S'ᵀ k
            b = beta[t][:, None]
            u = signs.rounded(b * error, b.abs() * terms * row_factor * _TWO_EVENTS)
            S = decayed + _outer(k[t], u)
            S = signs.rounded(S, _PARTIAL_SUM_ERROR * S.abs())
            U, K = torch.hypot(_MEMORY_PER_TOKEN * U, u), torch.hypot(_MEMORY_PER_TOKEN * K, k[t])
            M = _accumulate_terms(M_decayed, _outer(k[t], u), S, smallest_normal * (1 + U))
            y_terms = transposed_matvec(M, q[t].abs() + smallest_normal) + smallest_normal * U
            ys.append(signs.rounded(scale * transposed_matvec(S, q[t]), abs(scale) * y_terms * row_factor))
            saved.append((decayed, M_decayed, S, M, u, error, terms, smallest_normal * K))
        ctx.signs, ctx.running_sums, ctx.scale, ctx.saved = signs, running_sums, scale, saved
        ctx.inputs = v, q, k, g, beta, row_factors
        return torch.stack(ys) if ys else v.clone(), signs.rounded(S, M)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dys, G = grads
        (v, q, k, g, beta, row_factors), rounded, scale = ctx.inputs, ctx.signs.rounded, ctx.scale
        N, token_gradients, cumsum_terms_by_token, smallest_normal = G.abs(), [], [], ctx.signs.smallest_normal
        V, Q = torch.zeros_like(G[:, 0]), torch.zeros_like(G[:, :, 0])
        for t in reversed(range(len(v))):
            decayed, M_decayed, S, M, u, error, terms, key_terms = ctx.saved.pop()
            dy, row_factor, b, key_magnitude = scale * dys[t], row_factors[t], beta[t][:, None], k[t].abs()
            V, Q = torch.hypot(_MEMORY_PER_TOKEN * V, dy), torch.hypot(_MEMORY_PER_TOKEN * Q, scale * q[t])
            G, N = G + _outer(q[t], dy), torch.hypot(N, _outer(q[t], dy)).clamp(min=smallest_normal)
            dq_terms = matvec(M, dy.abs() + smallest_normal) + abs(scale) * key_terms
            dq = rounded(matvec(S, dy), dq_terms * row_factor)
            du_terms = (transposed_matvec(N, key_magnitude + smallest_normal) + smallest_normal * V) * _TWO_EVENTS
            du = rounded(transposed_matvec(G, k[t]), du_terms * row_factor)
            du_magnitude = du.abs() + du_terms  # of v and of the value read from the state: they cancel later
            dv = rounded(b * du, (b * du).abs())
            dbeta = rounded((du * error).sum(-1), ((du.abs() + du_terms * row_factor) * terms).sum(-1))
            dk_terms = (
                matvec(N, u.abs() + smallest_normal) + matvec(M_decayed, b.abs() * du_magnitude) + smallest_normal * Q
            )
            dk = rounded(matvec(G, u) - matvec(decayed, b * du), dk_terms * row_factor)
            if ctx.running_sums:
                state, gradient = (S, M, dy.abs() + smallest_normal), (G, N, u.abs() + smallest_normal)
                memory, channels = (decayed, M_decayed, (b * du).abs()), g.shape[-1]
                read_terms = ctx.running_sums.terms(channels, q[t], dq, dq_terms, state)
                written_terms = ctx.running_sums.terms(channels, k[t], dk, dk_terms, gradient, memory)
                cumsum_terms_by_token.append(read_terms + written_terms)
            G = G - _outer(k[t], b * du)
            G = rounded(G, _PARTIAL_SUM_ERROR * G.abs())
            N = _accumulate_terms(N, _outer(k[t], b * du), G, smallest_normal * (1 + V))
            dg, dg_terms = ((x * y).sum(-1) for x, y in ((decayed, G), (M_decayed, N)))
            if g.shape[-1] == 1:
                dg, dg_terms = dg.sum(-1, keepdim=True), dg_terms.sum(-1, keepdim=True)
            dg = rounded(dg, dg_terms * row_factor)
            decay = g[t].exp()[..., None]
            G, N = rounded(decay, _decay_terms(decay, g[t])) * G, decay * N
            token_gradients.append((dv, dq, dk, dg, dbeta))
        if not token_gradients:
            return None, None, None, G, *(torch.zeros_like(x) for x in (v, q, k, g, beta)), None
        dv, dq, dk, dg, dbeta = (torch.stack(x[::-1]) for x in zip(*token_gradients, strict=True))
        if ctx.running_sums:
            cumsum_terms = torch.stack(cumsum_terms_by_token[::-1])
            dg = dg + ctx.running_sums.errors_of_gradients(rounded(torch.zeros_like(cumsum_terms), cumsum_terms))
        N = N.maximum((smallest_normal * (1 + V))[:, None])
        return None, None, None, rounded(G, N), dv, dq, dk, dg, dbeta, None


def _decay_terms(decay: Tensor, g: Tensor) -> Tensor:
    return decay * (1 + clamped_exponent(g.abs())[..., None]) + UNDERFLOW


def _accumulate_terms(M: Tensor, update: Tensor, S: Tensor, underflow: Tensor) -> Tensor:
    """M after one more term. underflow: the loss of a decayed state by underflow, for each of its columns."""
    return torch.maximum(torch.hypot(_MEMORY_PER_TOKEN * M, update), S.abs()).maximum(underflow[:, None])


def _outer(k: Tensor, u: Tensor) -> Tensor:
    return k[..., None] * u[:, None]
