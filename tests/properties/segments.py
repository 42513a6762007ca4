"""A selective scan that hands its state over every SEGMENT tokens, written right and in three ways wrong.

Inside a segment the incoming state is folded in: what the segment computes without it, plus its remainder after each
token. So one run has the bits of a continued one if the cut ends a segment, and other bits if it ends a chunk.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof import refs
from packproof.refs.recurrence import expand_groups

CHUNK, SEGMENT = 16, 80  # longer than the sequences that are judged without the promise


def from_state(h: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (t, ...) after the state h (d, n): their outputs (t, d), and the state after them."""
    alone, states = torch.tensor([0, len(u)]), h[None]
    y, final = refs.selective_scan(u, delta, A, B, C, cu_seqlens=alone, initial_states=states, return_final_states=True)
    return y, final[0]


def folded(h: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """As `from_state`, by linearity in h."""
    y, final = from_state(torch.zeros_like(h), u, delta, A, B, C)
    left = (delta[..., None] * A).cumsum(0).exp() * h  # [t, d, n]
    return y + (left * expand_groups(C, u.shape[1])).sum(-1), final + left[-1]


def from_nothing(h: Tensor, *tokens: Tensor) -> tuple[Tensor, Tensor]:
    return from_state(torch.zeros_like(h), *tokens)


def own_state_only(h: Tensor, *tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The remainder of h is in the outputs, and missing in the state that is passed on."""
    return folded(h, *tokens)[0], from_nothing(h, *tokens)[1]


def scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    later: Callable[..., tuple[Tensor, Tensor]],
) -> Any:
    """Each sequence segment by segment, the first from its initial state by `folded`, the others by `later`."""
    offsets = cu_seqlens.tolist()
    states = A.new_zeros(len(offsets) - 1, *A.shape) if initial_states is None else initial_states
    ys, finals = [u[:0]], [A.new_zeros(0, *A.shape)]
    for initial, (start, end) in zip(states, pairwise(offsets), strict=True):
        h = initial
        for first in range(start, end, SEGMENT):
            rows = slice(first, min(first + SEGMENT, end))
            run = folded if first == start else later
            y, h = run(h, u[rows], delta[rows], A, B[rows], C[rows])
            ys.append(y)
        finals.append(h[None])
    y = torch.cat([*ys, torch.zeros_like(u[offsets[-1] :])])
    return (y, torch.cat(finals)) if return_final_states else y


right = partial(scan, later=folded)
loses_the_carry = partial(scan, later=from_nothing)
passes_on_its_own = partial(scan, later=own_state_only)
folds_the_first_only = partial(scan, later=from_state)  # right but for the bits: what is given enters otherwise
