"""The common parts of linear attention and the delta rule: one state S (k, p) for each value head.

    S = exp(g) S + k uᵀ     y = scale Sᵀ q

u = v in linear attention. In the delta rule, u = β (v - Sᵀ k) with the decayed S. In this module g has shape (t, h, 1),
or (t, h, k) for a gate per key channel, and q and k have one head per value head.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from packproof.base.arguments import whole_number
from packproof.base.errors import ArgumentError
from packproof.refs.recurrence import (
    expand_groups,
    join_sequences,
    join_states,
    split_sequences,
    split_states,
    to_compute_dtype,
)
from packproof.refs.segsum import segsum

Result = Tensor | tuple[Tensor, Tensor]  # y, or y and the final states

GatedRecurrence = Callable[..., tuple[Tensor, Tensor]]  # (S, v, q, k, g[, beta]) -> (y, S)


def run_over_pack(
    recurrence: GatedRecurrence,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *gates: Tensor,
    scale: float,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
) -> Result:
    """Run a recurrence over each sequence: y (t, hv, p) in v's dtype, on request the final states (s, hv, k, p) too.

    recurrence: `y, S = recurrence(S, v, q, k, *gates)` over one sequence, with tensors in the compute dtype.
    gates: g and beta, as far as the recurrence takes them.
    """
    q, k = (expand_groups(to_compute_dtype(x), v.shape[1]) for x in (q, k))
    tokens = [to_compute_dtype(v), q, k, *map(to_compute_dtype, gates)]
    state_shape = (v.shape[1], k.shape[2], v.shape[2])
    states = split_states(initial_states, len(cu_seqlens) - 1, state_shape, tokens[0])
    pieces = zip(*(split_sequences(token, cu_seqlens) for token in tokens), strict=True)
    results = [recurrence(S, *piece) for S, piece in zip(states, pieces, strict=True)]
    y = join_sequences((scale * y for y, _ in results), v)
    return (y, join_states([S for _, S in results], state_shape, tokens[0])) if return_final_states else y


def no_decay(v: Tensor) -> Tensor:
    """g = 0: a state without decay."""
    return to_compute_dtype(v.new_zeros(*v.shape[:2], 1))


def outer(k: Tensor, u: Tensor) -> Tensor:
    """k uᵀ of each head."""
    return k[..., None] * u[:, None]


def read_state(S: Tensor, q: Tensor) -> Tensor:
    """Sᵀ q of each head."""
    return (S * q[..., None]).sum(1)


def chunked_form(function: str, chunk: Any) -> GatedRecurrence:
    """The recurrence in chunks. Raises ArgumentError, in the name of a function, for a chunk that is no number."""
    return partial(chunkwise_recurrence, whole_number(function, "chunk", chunk, 1, ArgumentError))


def chunkwise_recurrence(chunk: int, S: Tensor, *tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Either recurrence in chunks: masked attention inside a chunk, a state passed on between chunks."""
    ys = [tokens[0][:0]]
    for piece in zip(*(torch.split(token, chunk) for token in tokens), strict=True):
        y, S = _one_chunk(S, *piece)
        ys.append(y)
    return torch.cat(ys), S


def _one_chunk(
    S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor, beta: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """y and the state at the end of a chunk, from the state S before it.

    S enters as token 0. L[h, c, i, j] is the decay of channel c from token j to token i. In the delta rule, the value
    written by a token depends on those of earlier tokens, by a triangular system (the WY form, or UT transform):

        u_i + β_i Σ_{j<i} (k_iᵀ L_ij k_j) u_j = β_i (v_i - Sᵀ L_i0 k_i)
    """
    L = segsum(pad(g.permute(1, 2, 0), (1, 0))).exp()
    from_S, within, to_end = L[:, :, 1:, 0], L[:, :, 1:, 1:], L[:, :, -1]
    u = v
    if beta is not None:
        key_products = beta.mT[..., None] * torch.einsum("ihc, hcij, jhc -> hij", k, within, k).tril(-1)
        rhs = beta[..., None] * (v - torch.einsum("ihc, hci, hcp -> ihp", k, from_S, S))
        identity = torch.eye(len(v), dtype=v.dtype, device=v.device)
        u = torch.linalg.solve_triangular(identity + key_products, rhs.transpose(0, 1), upper=False).transpose(0, 1)
    scores = torch.einsum("ihc, hcij, jhc -> hij", q, within, k)
    y = torch.einsum("hij, jhp -> ihp", scores, u) + torch.einsum("ihc, hci, hcp -> ihp", q, from_S, S)
    chunk_state = torch.einsum("hcj, jhc, jhp -> hcp", to_end[..., 1:], k, u)
    return y, to_end[..., :1] * S + chunk_state
