"""The errors of a gate's gradient as a kernel with `cumsum` has it: a running sum of q · dq - k · dk over a chunk.

In absolute terms, q · dq has the error Σ |q_c| M_cp |dy_p|, over all channels of the state S with terms M. That bounds
the roundings of an fp32 kernel well enough. Roundings of 16-bit operands are 2^16 times as large, and the bound was
more than the gradient. They have random signs. An operand is a number of S, a number of dy or q, or a score of two
tokens; S = Σ_j k_j u_jᵀ is the operand of states, k_j and u_j those within a chunk:

    S_cp              (q_c S_cp dy_p)²
    dy_p, u_jp        ((q · S_p) dy_p)²             sums over j or c are formed before they meet the rounding
    q_c, k_jc         (q_c dq_c)²
    score of t and j  ((q · k_j) (u_j · dy))²

The last ones are sums over j, of which the kernel rounds each term. The square of a sum of terms of random signs is on
average the sum of their squares, and larger where the signs agree. So the sum of the four squares bounds the mean
square of the error, with M for S in the first. The last one is (q · dq)². Likewise for k · dk, of both of its parts. A
gate of one channel sums over p alone.
"""

# mypy: allow-untyped-calls

from dataclasses import dataclass

import torch
from torch import Tensor

from packproof.properties.bounds.running_sums import chunk_totals, prefix_sums, suffix_sums
from packproof.properties.declarations.promises import Promises

Factor = tuple[Tensor, Tensor, Tensor]
"""A matrix (h, k, p), the magnitude of its terms, and the magnitude of the vector (h, p) that it is multiplied by."""


@dataclass(frozen=True)
class RunningSums:
    """How the running sums of a kernel err."""

    promises: Promises
    """Where its chunks start, and their length."""
    exact: bool = False
    """Whether only the terms of sums err, since their operands are rounded; else the fp32 sums do."""

    def errors_of_gates(self, exponents: Tensor) -> Tensor:
        """E: the error of the sum of gates at each token, from their magnitudes (t, ...)."""
        return torch.zeros_like(exponents) if self.exact else prefix_sums([exponents], self.promises, exponents)

    def errors_of_gradients(self, errors: Tensor) -> Tensor:
        """The error of each gate's gradient, from those of the terms (t, ...)."""
        return (suffix_sums if self.exact else chunk_totals)([errors], self.promises, errors)

    def terms(self, channels: int, x: Tensor, gradient: Tensor, gradient_terms: Tensor, *factors: Factor) -> Tensor:
        """The error of the term x · gradient of one token, (h, channels).

        channels: of a gate; 1, or one for each of x.
        x, gradient: (h, k).
        gradient_terms: the sum of the absolute terms of the gradient (h, k).
        factors: of the products that the gradient is a sum of.
        """
        if not self.exact:
            products = x.abs() * gradient_terms
            return products if channels > 1 else products.sum(-1, keepdim=True)
        squares = (x * gradient).square()
        for _, magnitude, vector in factors:
            squares = squares + x.square() * matvec(magnitude.square(), vector.square())
        if channels == 1:
            squares = squares.sum(-1, keepdim=True) + (x * gradient).sum(-1, keepdim=True).square()
            for matrix, _, vector in factors:
                squares = squares + (transposed_matvec(matrix, x) * vector).square().sum(-1, keepdim=True)
        return squares.sqrt()


def transposed_matvec(S: Tensor, q: Tensor) -> Tensor:
    """Sᵀ q."""
    return torch.bmm(q[:, None], S).squeeze(1)


def matvec(S: Tensor, u: Tensor) -> Tensor:
    """S u."""
    return torch.bmm(S, u[..., None]).squeeze(2)
