"""Intermediate values of SSD (Mamba-2, Dao & Gu 2024, section 6): the parts of y, and states inside a sequence."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from packproof.base.arguments import bind, check_options, host_offsets, whole_number, widen_narrow_inputs
from packproof.base.errors import ArgumentError, LayoutError, checked_call
from packproof.base.signatures import SSD
from packproof.base.wording import plural
from packproof.refs.recurrence import (
    expand_groups,
    join_sequences,
    join_states,
    split_sequences,
    split_states,
    time_step,
    to_compute_dtype,
)
from packproof.refs.ssd import ChunkParts, advance, chunk_parts

_INPUTS = {name: SSD.inputs[name] for name in ("x", "dt", "A", "B", "C", "dt_bias", "initial_states")}
_INTERMEDIATES = replace(SSD, op="ssd_intermediates", inputs=_INPUTS)
_STATE = replace(SSD, op="ssd_state", inputs={name: axes for name, axes in _INPUTS.items() if name != "C"})


class SsdIntermediates(NamedTuple):
    """Intermediate values of the chunked form of SSD: y = (diagonal + off_diagonal + D x) silu(z).

    >>> from packproof.refs import SsdIntermediates
    >>> SsdIntermediates._fields
    ('dt', 'log_decay', 'diagonal', 'off_diagonal', 'chunk_states', 'passed_states', 'cu_chunks')
    """

    dt: Tensor
    """(t, h), the time step, after bias and softplus."""
    log_decay: Tensor
    """(t, h), dt A summed from the start of the chunk; its exp is the decay of the entering state."""
    diagonal: Tensor
    """(t, h, p), the part of y from tokens of the same chunk."""
    off_diagonal: Tensor
    """(t, h, p), the part of y from the state entering the chunk."""
    chunk_states: Tensor
    """(c, h, p, n), the state at the end of each chunk from its own tokens alone."""
    passed_states: Tensor
    """(c, h, p, n), the state entering each chunk."""
    cu_chunks: Tensor
    """int64 (c + 1,), the first row of each chunk, and the end of the last one."""


@checked_call
def ssd_intermediates(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    dt_bias: Tensor | None = None,
    *,
    chunk: int = 64,
    dt_softplus: bool = False,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
) -> SsdIntermediates:
    """The intermediate values of `ssd_chunked`, from the same arguments without D and z.

    Chunks start with their sequence; an empty sequence has no chunk. All values are in the compute dtype of references,
    fp32 for bf16 and fp16 tokens. Rows of slack are zero. Raises ArgumentError or LayoutError.

    >>> import torch
    >>> from packproof.refs import ssd_intermediates
    >>> x, dt, A, B = torch.ones(5, 1, 2), torch.ones(5, 1), -torch.ones(1), torch.ones(5, 1, 3)
    >>> parts = ssd_intermediates(x, dt, A, B, B, cu_seqlens=torch.tensor([0, 2, 5]), chunk=2)
    >>> parts.cu_chunks
    tensor([0, 2, 4, 5])
    >>> (parts.diagonal + parts.off_diagonal)[:, 0, 0]
    tensor([3.0000, 4.1036, 3.0000, 4.1036, 4.5096])
    >>> parts.passed_states[:, 0, 0, 0]
    tensor([0.0000, 0.0000, 1.3679])
    """
    tensors = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "dt_bias": dt_bias, "initial_states": initial_states}
    sizes = bind(_INTERMEDIATES, cu_seqlens, **tensors, values=True)
    check_options(_INTERMEDIATES, dt_softplus=dt_softplus)
    size = whole_number("ssd_intermediates", "chunk", chunk, 1, ArgumentError)
    x, dt, A, B, C, dt_bias, initial_states = widen_narrow_inputs(_INTERMEDIATES, tensors).values()
    x, dt, B, C = (to_compute_dtype(token) for token in (x, dt, B, C))
    steps = [time_step(dt_j, dt_bias, dt_softplus) for dt_j in split_sequences(dt, cu_seqlens)]
    tokens = (x, expand_groups(B, sizes["h"]), expand_groups(C, sizes["h"]))
    xs, Bs, Cs = (split_sequences(token, cu_seqlens) for token in tokens)
    shape = (sizes["h"], sizes["p"], sizes["n"])
    states = split_states(initial_states, sizes["s"], shape, A)
    sequences = zip(states, xs, steps, Bs, Cs, strict=True)
    chunks = [chunk for h, *inputs in sequences for chunk in _chunks(size, A, h, *inputs)]
    parts = [part for _, part in chunks]
    return SsdIntermediates(
        dt=join_sequences(steps, like=dt),
        log_decay=join_sequences([part.log_decay for part in parts], like=dt),
        diagonal=join_sequences([part.diagonal for part in parts], like=x),
        off_diagonal=join_sequences([part.off_diagonal for part in parts], like=x),
        chunk_states=join_states([part.chunk_state for part in parts], shape, like=A),
        passed_states=join_states([h for h, _ in chunks], shape, like=A),
        cu_chunks=torch.tensor([0, *accumulate(len(part.diagonal) for part in parts)], device=x.device),
    )


def _chunks(
    size: int, A: Tensor, h: Tensor, x: Tensor, dt: Tensor, B: Tensor, C: Tensor
) -> Iterator[tuple[Tensor, ChunkParts]]:
    """The entering state and the parts of each chunk of one sequence."""
    for start in range(0, len(x), size):
        x_c, dt_c, B_c, C_c = (token[start : start + size] for token in (x, dt, B, C))
        parts = chunk_parts(h, x_c, dt_c, A, B_c, C_c)
        yield h, parts
        h = parts.chunk_state + parts.passed_state


@checked_call
def ssd_state(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    dt_bias: Tensor | None = None,
    *,
    token: int,
    dt_softplus: bool = False,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
) -> Tensor:
    """The state (h, p, n) of `ssd` after one token, computed token by token from the start of its sequence.

    token: its row in the pack.

    The other arguments are as in `ssd`. Raises ArgumentError or LayoutError.

    >>> import torch
    >>> from packproof.refs import ssd_state
    >>> x, dt, A, B = torch.ones(5, 1, 2), torch.ones(5, 1), -torch.ones(1), torch.ones(5, 1, 3)
    >>> ssd_state(x, dt, A, B, cu_seqlens=torch.tensor([0, 2, 5]), token=3)
    tensor([[[1.3679, 1.3679, 1.3679],
             [1.3679, 1.3679, 1.3679]]])
    """
    tensors = {"x": x, "dt": dt, "A": A, "B": B, "dt_bias": dt_bias, "initial_states": initial_states}
    sizes = bind(_STATE, cu_seqlens, **tensors, values=True)
    check_options(_STATE, dt_softplus=dt_softplus)
    row, offsets = whole_number("ssd_state", "token", token), host_offsets("ssd_state", cu_seqlens)
    if row >= offsets[-1]:
        raise LayoutError(f"ssd_state: token is {row} but the sequences have {plural(offsets[-1], 'token')}")
    sequence = max(j for j, start in enumerate(offsets) if start <= row)
    x, dt, A, B, dt_bias, initial_states = widen_narrow_inputs(_STATE, tensors).values()
    h = split_states(initial_states, sizes["s"], (sizes["h"], sizes["p"], sizes["n"]), A)[sequence]
    rows = slice(offsets[sequence], row + 1)
    x, dt, B = (to_compute_dtype(tokens[rows]) for tokens in (x, dt, B))
    steps = time_step(dt, dt_bias, dt_softplus)
    for x_i, dt_i, B_i in zip(x, steps, expand_groups(B, sizes["h"]), strict=True):
        h = advance(h, x_i, dt_i, A, B_i)
    return h
