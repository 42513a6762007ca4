"""Selective scan and SSD of a pack that is cut over ranks: states go from rank to rank, their gradients back."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from packproof import kernels
from packproof.parallel.recurrence import Arguments, RecurrentOp, over_ranks
from packproof.parallel.shard import Shard
from packproof.refs.errors import checked_call
from packproof.refs.recurrence import time_step

_SSD_TOKENS = ("x", "dt", "B", "C", "z")
_SCAN_TOKENS = ("u", "delta", "B", "C", "z")


@checked_call
def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    shard: Shard,
    dt_softplus: bool = False,
    kernel: Callable[..., Any] | None = None,
) -> Tensor:
    """`packproof.kernels.ssd` of the tokens on this rank, as those of the whole pack would be: y (t, h, p).

    x, z: (t, h, p), dt: (t, h), B, C: (t, g, n): the rank's tokens; rows after them are slack. A, dt_bias (h,) and D
    (h,) or (h, p) are the same on all ranks, and their gradients the rank's part of the sum over ranks. Two all-gathers
    of a state (h, p, n), one in each pass, which every rank has to run, also one without tokens. kernel: a function
    with the signature of `packproof.refs.ssd` instead of packproof's own.

    >>> import torch
    >>> from packproof import parallel, refs
    >>> x, dt, A, B, cu_seqlens = torch.ones(5, 1, 2), torch.ones(5, 1), -torch.ones(1), torch.ones(5, 1, 3), [0, 1, 5]
    >>> def program(group):
    ...     shard = parallel.Shard(cu_seqlens, group)
    ...     rows = shard.rows
    ...     return parallel.ssd(x[rows], dt[rows], A, B[rows], B[rows], shard=shard, kernel=refs.ssd)
    >>> torch.cat(parallel.run_ranks(2, program))[:, 0, 0]
    tensor([3.0000, 3.0000, 4.1036, 4.5096, 4.6590])
    """
    given = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    passes: dict[str, Any] = {} if kernel else {"final_state": _ssd_left, "entering": _ssd_entering}
    recurrence = RecurrentOp("ssd", kernel or kernels.ssd, _SSD_TOKENS, _ssd_state, _ssd_decay, **passes)
    return over_ranks(recurrence, {**_present(given), "dt_softplus": dt_softplus}, shard)


@checked_call
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    *,
    shard: Shard,
    delta_softplus: bool = False,
    kernel: Callable[..., Any] | None = None,
) -> Tensor:
    """`packproof.kernels.selective_scan` of the tokens on this rank, as those of the whole pack would be: y (t, d).

    u, delta, z: (t, d), B, C: (t, n) or (t, g, n): the rank's tokens; rows after them are slack. A (d, n), D and
    delta_bias (d,) are the same on all ranks, and their gradients the rank's part of the sum over ranks. Two
    all-gathers of a state (d, n), one in each pass, which every rank has to run, also one without tokens. kernel: a
    function with the signature of `packproof.refs.selective_scan` instead of packproof's own.

    >>> import torch
    >>> from packproof import parallel, refs
    >>> u, A, B, cu_seqlens = torch.ones(5, 2), -torch.ones(2, 3), torch.ones(5, 3), [0, 1, 5]
    >>> def program(group):
    ...     shard = parallel.Shard(cu_seqlens, group)
    ...     rows = shard.rows
    ...     return parallel.selective_scan(
    ...         u[rows], u[rows], A, B[rows], B[rows], shard=shard, kernel=refs.selective_scan
    ...     )
    >>> torch.cat(parallel.run_ranks(2, program))[:, 0]
    tensor([3.0000, 3.0000, 4.1036, 4.5096, 4.6590])
    """
    given = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias}
    passes: dict[str, Any] = {} if kernel else {"final_state": _scan_left, "entering": _scan_entering}
    made = kernel or kernels.selective_scan
    recurrence = RecurrentOp("selective_scan", made, _SCAN_TOKENS, _scan_state, _scan_decay, **passes)
    return over_ranks(recurrence, {**_present(given), "delta_softplus": delta_softplus}, shard)


def _present(arguments: dict[str, Tensor | None]) -> Arguments:
    return {name: x for name, x in arguments.items() if x is not None}


def _ssd_state(arguments: Arguments) -> tuple[int, ...]:
    return (*arguments["x"].shape[1:], arguments["B"].shape[-1])


def _scan_state(arguments: Arguments) -> tuple[int, ...]:
    return tuple(arguments["A"].shape)


def _ssd_decay(arguments: Arguments) -> Tensor:
    """exp(Σ dt A), (h,)."""
    decay: Tensor = (_steps(arguments, "dt") * arguments["A"]).exp()
    return decay


def _scan_decay(arguments: Arguments) -> Tensor:
    """exp(A Σ Δ), (d, n)."""
    decay: Tensor = (_steps(arguments, "delta")[:, None] * arguments["A"]).exp()
    return decay


def _ssd_left(given: Arguments, cu_seqlens: Tensor) -> Tensor:
    from packproof.kernels.ssd import state_left  # noqa: PLC0415  (needs triton)

    tensors = (given["x"], given["dt"], given["A"], given["B"], given.get("dt_bias"))
    return state_left(*tensors, cu_seqlens, softplus=given["dt_softplus"])


def _ssd_entering(given: Arguments, cu_seqlens: Tensor, dy: Tensor) -> Tensor:
    from packproof.kernels.ssd import gradient_entering  # noqa: PLC0415  (needs triton)

    tensors = (given["dt"], given["A"], given["C"], given.get("z"), given.get("dt_bias"))
    return gradient_entering(dy, *tensors, cu_seqlens, softplus=given["dt_softplus"])


def _scan_left(given: Arguments, cu_seqlens: Tensor) -> Tensor:
    """The kernel has the states of whole pieces: a shorter one is filled up before its tokens, with zeros as inputs."""
    from packproof.kernels.selective_scan import state_left  # noqa: PLC0415  (needs triton)
    from packproof.kernels.selective_scan_launch import piece_size  # noqa: PLC0415

    size, tokens = piece_size(), len(given["u"])
    rest = tokens % size
    if rest and tokens > size:
        first, last = _cut(given, tokens - rest)
        state = _scan_left(first, _later(cu_seqlens, -rest))
        return _scan_decay(last) * state + _scan_left(last, _later(cu_seqlens, rest - tokens))
    given = _filled(given, -tokens % size)
    tensors = (given["u"], given["delta"], given["A"], given["B"], given.get("delta_bias"))
    return state_left(*tensors, _later(cu_seqlens, -tokens % size), softplus=given["delta_softplus"])


def _scan_entering(given: Arguments, cu_seqlens: Tensor, dy: Tensor) -> Tensor:
    """The kernel has the gradients between pieces: that before the first one with zeros as a piece before it."""
    from packproof.kernels.selective_scan_launch import piece_size  # noqa: PLC0415  (needs triton)

    size, tokens = piece_size(), len(dy)
    whole = {**given, "dy": dy}
    first, _ = _cut(whole, min(size, tokens))
    gradient = _after_a_piece(_filled(first, size), _later(cu_seqlens, size - max(tokens - size, 0)))
    return gradient + _scan_decay(first) * _after_a_piece(whole, cu_seqlens) if tokens > size else gradient


def _after_a_piece(given: Arguments, cu_seqlens: Tensor) -> Tensor:
    from packproof.kernels.selective_scan import gradient_after_a_piece  # noqa: PLC0415  (needs triton)

    tensors = (given["dy"], given["delta"], given["A"], given["C"], given.get("z"), given.get("delta_bias"))
    return gradient_after_a_piece(*tensors, cu_seqlens, softplus=given["delta_softplus"])


def _cut(given: Arguments, tokens: int) -> tuple[Arguments, Arguments]:
    along = (*_SCAN_TOKENS, "dy")
    first, last = (
        {n: x[rows] for n, x in given.items() if n in along} for rows in (slice(tokens), slice(tokens, None))
    )
    return {**given, **first}, {**given, **last}


def _filled(given: Arguments, rows: int) -> Arguments:
    """With so many tokens of zeros before the others."""
    if not rows:
        return given
    along = (*_SCAN_TOKENS, "dy")
    return {n: torch.cat([x.new_zeros(rows, *x.shape[1:]), x]) if n in along else x for n, x in given.items()}


def _later(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """The offsets of one sequence with so many tokens more."""
    return torch.cat([cu_seqlens[:1], cu_seqlens[1:] + tokens]) if tokens else cu_seqlens


def _steps(arguments: Arguments, name: str) -> Tensor:
    """The sum over the tokens of their steps, in the dtype of A."""
    bias, softplus = arguments.get(f"{name}_bias"), arguments[f"{name}_softplus"]
    return time_step(arguments[name].to(arguments["A"].dtype), bias, softplus).sum(0)
