"""The common parts of the references: the loops over sequences and over time, the time step, the gate and the skip."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from itertools import pairwise
from typing import Any

import torch
from einops import repeat
from torch import Tensor
from torch.nn import functional

from packproof.base.arguments import bind, check_offsets, check_offsets_form, check_options, widen_narrow_inputs
from packproof.base.errors import ArgumentError, checked_call
from packproof.base.signatures import Signature
from packproof.base.wording import kind, plural

Step = Callable[..., tuple[Tensor, Tensor]]
Recurrence = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Gate = Callable[[Tensor, Tensor | None], Tensor]

SOFTPLUS_LINEAR = 40.0  # above it softplus(x) == x in float64; torch's default of 20 loses nine digits


def checked_arguments(signature: Signature, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, `narrow` ones widened. Raises ArgumentError or LayoutError if one is wrong.

    arguments: all of the call; in an op without variables of its own they are `locals()`.
    """
    inputs = {name: arguments[name] for name in signature.inputs if name in arguments}
    bind(signature, arguments["cu_seqlens"], **inputs, values=True)
    check_options(signature, **{name: arguments[name] for name in signature.options})
    return {**arguments, **widen_narrow_inputs(signature, inputs)}


def sequence_slices(cu_seqlens: Tensor) -> list[slice]:
    """The rows of each sequence, from offsets (s + 1,). Reads them on the host."""
    return [slice(start, end) for start, end in pairwise(cu_seqlens.tolist())]


@checked_call
def split_sequences(x: Tensor, cu_seqlens: Tensor) -> list[Tensor]:
    """The rows of each sequence of x (t, ...), as views; rows past the last offset are left out.

    Uses one split, not many slices: the backward of each slice fills a tensor of the size of x. Reads the offsets on
    the host. Raises ArgumentError, and LayoutError for offsets not fitting x.

    >>> import torch
    >>> from packproof.refs import split_sequences
    >>> split_sequences(torch.arange(6), torch.tensor([0, 2, 5]))
    [tensor([0, 1]), tensor([2, 3, 4])]
    """
    check_rows("split_sequences", "x", x)
    check_offsets_form("split_sequences", cu_seqlens)
    check_offsets("split_sequences", cu_seqlens, len(x), "x has")
    rows = sequence_slices(cu_seqlens)
    n_tokens = rows[-1].stop if rows else 0
    return list(torch.split(x[:n_tokens], [r.stop - r.start for r in rows])) if rows else []


@checked_call
def join_sequences(pieces: Iterable[Tensor], like: Tensor) -> Tensor:
    """Concatenate the sequences' results into the shape and dtype of `like` (t, ...); slack rows are zero.

    Raises ArgumentError for a piece with another row shape than `like`, and for more rows in all than `like`.

    >>> import torch
    >>> from packproof.refs import join_sequences
    >>> join_sequences([torch.ones(2), torch.ones(1)], like=torch.zeros(5))
    tensor([1., 1., 1., 0., 0.])
    """
    pieces = _validate_pieces(pieces, like)
    rows = [like[:0], *(piece.to(like.dtype) for piece in pieces)]  # like[:0]: a graph even if there is no sequence
    slack = like.shape[0] - sum(row.shape[0] for row in rows)
    return torch.cat([*rows, like.new_zeros(slack, *like.shape[1:])])


def split_states(states: Tensor | None, n_sequences: int, shape: Sequence[int], like: Tensor) -> list[Tensor]:
    """The initial state of each sequence: from `states` (s, *shape), or zeros with the dtype and device of `like`."""
    if states is None:
        return [like.new_zeros(shape)] * n_sequences
    return list(states.unbind(0))


def join_states(states: Sequence[Tensor], shape: Sequence[int], like: Tensor) -> Tensor:
    """Stack the final states into (s, *shape), even if there are none."""
    return torch.stack(list(states)) if states else like.new_zeros(0, *shape)


@checked_call
def over_time(step: Step, state: Tensor, *tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Run `state, y = step(state, *row)` over the rows of the tokens (t, ...); returns (y, final state).

    Without rows y is the first of the tokens: no rows, correct shape. Rows are unbound once: x[i] under autograd is
    O(t). Raises ArgumentError for tokens of different lengths, and for a step with other arguments or results.

    >>> import torch
    >>> from packproof.refs import over_time
    >>> def running_sum(total, x):
    ...     return total + x, total + x
    >>> over_time(running_sum, torch.tensor(0.0), torch.tensor([1.0, 2.0, 3.0]))
    (tensor([1., 3., 6.]), tensor(6.))
    """
    _check_steps(step, tokens)
    ys = []
    for row in zip(*(x.unbind(0) for x in tokens), strict=True):
        result = step(state, *row)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise ArgumentError(f"over_time: step returned {_describe_returned(result)} but (state, y) was expected")
        state, y = result
        ys.append(y)
    return torch.stack(ys) if ys else tokens[0], state


def time_step(delta: Tensor, bias: Tensor | None, softplus: bool) -> Tensor:
    """The step size of each token: delta, plus the bias, then through softplus if requested."""
    if bias is not None:
        delta = delta + bias
    return functional.softplus(delta, threshold=SOFTPLUS_LINEAR) if softplus else delta


def skip(y: Tensor, x: Tensor, D: Tensor | None) -> Tensor:
    """Add the direct path D x, where there is one."""
    return y if D is None else y + D * x


def gate(y: Tensor, z: Tensor | None) -> Tensor:
    """Scale by silu(z), where there is a gate."""
    return y if z is None else y * functional.silu(z)


def expand_groups(B: Tensor, n_channels: int) -> Tensor:
    """Give each channel or head the row of its group: (t, g, n) to (t, n_channels, n), or (t, n) to (t, 1, n)."""
    if B.ndim == 2:
        return B[:, None]
    return repeat(B, "t g n -> t (g r) n", r=n_channels // B.shape[1])


def to_compute_dtype(x: Tensor) -> Tensor:
    """x in the compute dtype of references: fp32 for bf16 and fp16, its own dtype otherwise."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def state_space(
    recurrence: Recurrence,
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    initial_states: Tensor | None,
    state_shape: Sequence[int],
    *,
    softplus: bool,
    cu_seqlens: Tensor,
    gate: Gate = gate,
) -> tuple[Tensor, Tensor]:
    """A packed state-space op: time step, recurrence, skip and gate of each sequence alone; returns (y, final states).

    recurrence: `y, h = recurrence(h, x, delta, A, B, C)` over one sequence, from the state h of shape `state_shape`.
        B and C have one row per channel or head, or one row for all.
    """
    n_sequences = cu_seqlens.shape[0] - 1
    # cast before expanding the groups: gradients are then summed over the channels of a group in the compute dtype
    tokens = (
        to_compute_dtype(x),
        to_compute_dtype(delta),
        *(expand_groups(to_compute_dtype(group), x.shape[1]) for group in (B, C)),
    )
    pieces = [split_sequences(token, cu_seqlens) for token in tokens]
    gates = [None] * n_sequences if z is None else split_sequences(to_compute_dtype(z), cu_seqlens)
    states = split_states(initial_states, n_sequences, state_shape, A)

    ys, finals = [], []
    for x_j, delta_j, B_j, C_j, z_j, h in zip(*pieces, gates, states, strict=True):
        y, h_end = recurrence(h, x_j, time_step(delta_j, bias, softplus), A, B_j, C_j)
        ys.append(gate(skip(y, x_j, D), z_j))
        finals.append(h_end)
    return join_sequences(ys, x), join_states(finals, state_shape, A)


def check_rows(function: str, name: str, x: Tensor) -> None:
    """Raise ArgumentError unless x is a tensor with rows."""
    if not isinstance(x, Tensor) or not x.ndim:
        actual = "a tensor without axes" if isinstance(x, Tensor) else kind(x)
        raise ArgumentError(f"{function}: {name} is {actual} but a tensor (t, ...) was expected")


def _validate_pieces(pieces: Iterable[Tensor], like: Tensor) -> list[Tensor]:
    check_rows("join_sequences", "like", like)
    if isinstance(pieces, Tensor) or not isinstance(pieces, Iterable):
        raise ArgumentError(f"join_sequences: pieces is {kind(pieces)} but one tensor for each sequence was expected")
    piece_list = list(pieces)
    for j, piece in enumerate(piece_list):
        check_rows("join_sequences", f"piece {j}", piece)
        if piece.shape[1:] != like.shape[1:]:
            raise ArgumentError(
                f"join_sequences: piece {j} is {tuple(piece.shape)} but like is {tuple(like.shape)}; "
                "they differ in the number of rows alone"
            )
    if (rows := sum(map(len, piece_list))) > len(like):
        raise ArgumentError(f"join_sequences: pieces have {plural(rows, 'row')} but like has {len(like)}")
    return piece_list


def _check_steps(step: Step, tokens: Sequence[Tensor]) -> None:
    if not callable(step):
        raise ArgumentError(f"over_time: step is {kind(step)} but a function was expected")
    if not tokens:
        raise ArgumentError("over_time: no tokens came; at least one tensor (t, ...) was expected after the state")
    for i, x in enumerate(tokens):
        check_rows("over_time", f"token tensor {i}", x)
        if len(x) != len(tokens[0]):
            raise ArgumentError(
                f"over_time: token tensor {i} has {plural(len(x), 'row')} but the first has {len(tokens[0])}"
            )
    _check_arguments(step, len(tokens))


def _check_arguments(step: Step, tokens: int) -> None:
    """Raise ArgumentError unless step takes the state and a row of each token tensor."""
    try:
        step_signature = signature(step)
    except (TypeError, ValueError):  # written in C
        return
    try:
        step_signature.bind(*range(1 + tokens))
    except TypeError as error:
        arguments = f"the state and {plural(tokens, 'row')}, one of each token tensor"
        raise ArgumentError(f"over_time: step takes {step_signature} but is called with {arguments}: {error}") from None


def _describe_returned(returned: Any) -> str:
    return f"{kind(returned)} of {len(returned)}" if isinstance(returned, tuple | list) else kind(returned)
