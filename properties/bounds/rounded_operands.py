"""The rounding events of linear attention, its decaying forms and SSD, with rounded operands of their products.

For `bounds.drawn_roundings`. A chunk is masked attention (`refs.ssd_chunked`); the state h is passed between chunks:

    W = C Bᵀ ∘ L              y = W X + (C ∘ L_h) h
    h' = L_end h + Bᵀ (X ∘ L_X)

The decays L are exact, since they are fp32. Each other factor has an event of its own size and a random sign, and so
does its gradient: C, B, X = dt x, C Bᵀ, W, h, and C, X with their decays for reading and writing a state. The gradient
of h' is rounded where it is stored between chunks, and again as an operand of the gradients of B and X. No kernel
rounds all of them. The mean square of the deviation is the sum over the roundings of a kernel, so extra events only
enlarge it.

The gradient of a decay sums dW ∘ W over all pairs on both sides of it. In absolute values the sum grows with the number
of pairs, with random signs by its root. For a parameter shared by all tokens the difference is a factor of the
length of a sequence. A kernel that promises `cumsum` has the gradient from the gradients of its sums, C · dC - B · dB.
Their roundings differ even where the values are the same (`_DecaySums`). Each sum has the
roundings of the tokens that it sums: those from its own token to the end of the chunk that the kernel promises. The
gradient of the state is rounded there, as a factor of the gradient of the chunk's last sum. States themselves have
events once in 64 tokens, whatever the chunk, as where there are no sums.
"""

# mypy: allow-untyped-calls

from collections.abc import Callable
from typing import Any

import torch
from einops import einsum
from torch import Tensor
from torch.nn.functional import pad

from packproof import refs
from packproof.base.arguments import finite_scale
from packproof.properties.bounds.signs import Signs
from packproof.properties.declarations.promises import Promises
from packproof.refs.gated import run_over_pack
from packproof.refs.recurrence import gate
from packproof.refs.ssd import run_ssd

_CHUNK = 64  # tokens
ELEMENTS_PER_TOKEN = 128  # elements of a token and head: its row of a chunk, or its channels if there are more


def ssd(promises: Promises, signs: Signs) -> Callable[..., Any]:
    """Make an SSD with random-sign roundings of its operands."""

    def function(**arguments: Any) -> Any:
        def recurrence(h: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
            dt = signs.noisy(dt)
            return _chunked_recurrence(promises, signs, h, dt[..., None] * x, dt * A, B, C)

        return run_ssd(recurrence, **arguments, gate=lambda y, z: gate(signs.noisy(y), z))

    return function


def simple_gla(promises: Promises, signs: Signs) -> Callable[..., Any]:
    """Make linear attention with a decay for each token and head, and random-sign roundings of its operands."""

    def function(q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, scale: float | None = None, **options: Any) -> Any:
        def recurrence(S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
            y, h = _chunked_recurrence(promises, signs, S.mT, v, signs.noisy(g), k, q)
            return y, h.mT

        factor = finite_scale("simple_gla", scale, q.shape[-1])
        return run_over_pack(recurrence, q, k, v, g, scale=factor, **options)

    return function


def retention(promises: Promises, signs: Signs) -> Callable[..., Any]:
    """As `simple_gla`, with a decay for each head."""

    def function(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, **options: Any) -> Any:
        return simple_gla(promises, signs)(q, k, v, decay.expand(len(v), -1), **options)

    return function


def linear_attention(promises: Promises, signs: Signs) -> Callable[..., Any]:
    """As `simple_gla`, without decay."""

    def function(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        return simple_gla(promises, signs)(q, k, v, v.new_zeros(v.shape[:2]), **options)

    return function


def _tokens_of_a_sum(promises: Promises) -> int:
    """The tokens over which gates are summed, at most those of a chunk."""
    return min(promises.chunk or _CHUNK, _CHUNK) if promises.cumsum else _CHUNK


def _chunked_recurrence(
    promises: Promises, signs: Signs, h: Tensor, X: Tensor, decays: Tensor, B: Tensor, C: Tensor
) -> tuple[Tensor, Tensor]:
    """y and the last state of one sequence: h (h, p, n); X (t, h, p); decays, logarithms (t, h); B, C (t, h, n).

    The docstring of this module has the formulas, and the factors that are rounded.
    """
    ys, rounded, tokens, is_stored = [X[:0]], signs.noisy, _tokens_of_a_sum(promises), True
    for start in range(0, max(len(X), 1), tokens):  # an empty sequence hands its state on, and may round it
        x, b, c = (rounded(token[start : start + tokens]) for token in (X, B, C))
        chunk_decays, end = decays[start : start + tokens], start + len(x)
        L = refs.segsum(pad(chunk_decays.T, (1, 0))).exp()  # (h, 1 + t, 1 + t): the state enters as token 0
        L_h, L_inside, L_X, L_end = L[:, 1:, 0], L[:, 1:, 1:], L[:, -1, 1:], L[:, -1, 0]
        if promises.cumsum:
            # decays get their gradients through the sums: these factors are 1, and L has no gradient
            read_factor, write_factor, end_factor = _DecaySums.apply(chunk_decays)
            c, b = rounded(c * read_factor[..., None]), rounded(b * write_factor[..., None])
            L_h, L_inside, L_X, L_end = (x.detach() for x in (L_h, L_inside, L_X, L_end))
        W = rounded(rounded(einsum(c, b, "i h n, j h n -> h i j")) * L_inside)
        read = rounded(c * L_h.T[..., None])
        from_state = einsum(read, rounded(h) if is_stored else h, "i h n, h p n -> i h p")
        ys.append(einsum(W, x, "h i j, j h p -> i h p") + from_state)
        update = einsum(rounded(x * L_X.T[..., None]), b, "j h p, j h n -> h p n")
        is_stored = end // _CHUNK > start // _CHUNK or end == len(X)
        h = L_end[:, None, None] * h + (signs.noisy_gradient(update) if is_stored else update)
        if promises.cumsum:
            h = h + (signs.noisy_gradient(h.detach() * end_factor[:, None, None]) - h.detach())  # adds 0
        h = signs.noisy_gradient(h) if is_stored else h
    return torch.cat(ys), h


class _DecaySums(torch.autograd.Function):
    """Factors of 1 that receive the gradients of cumulative sums of log-decays.

    From the log-decays (t, h) of a chunk: one for reading a token (t, h), one for writing it (t, h), one for the end of
    the chunk (h,). The gradient of a log-decay is the sum of the gradients of all sums from its token on.
    """

    @staticmethod
    def forward(ctx: Any, decays: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ones_like(decays), torch.ones_like(decays), decays.new_ones(decays.shape[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        read_gradient, write_gradient, end_gradient = grads
        sum_gradients = read_gradient - write_gradient
        sum_gradients[-1:] += end_gradient
        return sum_gradients.flip(0).cumsum(0).flip(0)
