"""Selective scan and SSD of a pack cut over ranks: states go from rank to rank, their gradients back."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from packproof import kernels
from packproof.base.arguments import widen_narrow_inputs
from packproof.base.errors import checked_call
from packproof.base.signatures import SELECTIVE_SCAN, SSD
from packproof.parallel.recurrence import Arguments, Backward, BuiltinPasses, Forward, RecurrentOp, run_over_ranks
from packproof.parallel.shard import Shard
from packproof.refs.recurrence import time_step

_SSD_TOKENS = ("x", "dt", "B", "C", "z")
_SCAN_TOKENS = ("u", "delta", "B", "C", "z")
_SSD_INPUTS = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias")
_SCAN_INPUTS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")


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
    """`packproof.kernels.ssd` of the tokens on this rank, with the values of the whole pack: y (t, h, p).

    Each pass has one all-gather of a state (h, p, n). Every rank has to run both passes, including one without tokens.

    x, z: (t, h, p), the rank's tokens; further rows are slack.
    dt: (t, h), as x.
    B, C: (t, g, n), as x.
    A, dt_bias: (h,), the same on all ranks. Their gradients are this rank's part of the sum over ranks.
    D: (h,) or (h, p), as A.
    kernel: replaces packproof's own; has the signature of `packproof.refs.ssd`.

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
    arguments = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias}
    arguments = widen_narrow_inputs(SSD, arguments)
    builtin_passes = (
        None if kernel else BuiltinPasses(_ssd_forward, _ssd_backward, _ssd_inner_forward, _ssd_inner_backward)
    )
    op = RecurrentOp("ssd", kernel or kernels.ssd, _SSD_TOKENS, _ssd_state, _ssd_decay, builtin_passes)
    return run_over_ranks(op, {**_drop_absent(arguments), "dt_softplus": dt_softplus}, shard)


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
    """`packproof.kernels.selective_scan` of the tokens on this rank, with the values of the whole pack: y (t, d).

    Each pass has one all-gather of a state (d, n). Every rank has to run both passes, including one without tokens.

    u, delta, z: (t, d), the rank's tokens; further rows are slack.
    B, C: (t, n) or (t, g, n), as u.
    A: (d, n), the same on all ranks. Its gradient is this rank's part of the sum over ranks.
    D, delta_bias: (d,), as A.
    kernel: replaces packproof's own; has the signature of `packproof.refs.selective_scan`.

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
    arguments = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias}
    arguments = widen_narrow_inputs(SELECTIVE_SCAN, arguments)
    builtin_passes = (
        None if kernel else BuiltinPasses(_scan_forward, _scan_backward, _scan_inner_forward, _scan_inner_backward)
    )
    scan = kernel or kernels.selective_scan
    op = RecurrentOp("selective_scan", scan, _SCAN_TOKENS, _scan_state, _scan_decay, builtin_passes)
    return run_over_ranks(op, {**_drop_absent(arguments), "delta_softplus": delta_softplus}, shard)


def _drop_absent(arguments: dict[str, Tensor | None]) -> Arguments:
    return {name: x for name, x in arguments.items() if x is not None}


def _ssd_state(arguments: Arguments) -> tuple[int, ...]:
    return (*arguments["x"].shape[1:], arguments["B"].shape[-1])


def _scan_state(arguments: Arguments) -> tuple[int, ...]:
    return tuple(arguments["A"].shape)


def _ssd_decay(arguments: Arguments) -> Tensor:
    """exp(Σ dt A), (h,)."""
    decay: Tensor = (_total_step(arguments, "dt") * arguments["A"]).exp()
    return decay


def _scan_decay(arguments: Arguments) -> Tensor:
    """exp(A Σ Δ), (d, n)."""
    decay: Tensor = (_total_step(arguments, "delta")[:, None] * arguments["A"]).exp()
    return decay


def _ssd_forward(arguments: Arguments, cu_seqlens: Tensor, leaves: bool) -> Forward:
    from packproof.kernels.ssd import forward_over_ranks  # noqa: PLC0415  (needs triton)

    halves = partial(forward_over_ranks, softplus=arguments["dt_softplus"], leaves=leaves)
    y, ends = yield from _call_with_inputs(halves, arguments, _SSD_INPUTS, cu_seqlens)
    return y, ends


def _ssd_backward(
    arguments: Arguments, cu_seqlens: Tensor, dy: Tensor, entering: Tensor | None, saved: Tensor
) -> Backward:
    from packproof.kernels.ssd import backward_over_ranks  # noqa: PLC0415  (needs triton)

    backward = partial(backward_over_ranks, dy)
    run = _call_with_inputs(
        backward, arguments, _SSD_INPUTS, cu_seqlens, entering, saved, softplus=arguments["dt_softplus"]
    )
    return dict(zip(_SSD_INPUTS, (yield from run), strict=True))


def _ssd_inner_forward(arguments: Arguments, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    from packproof.kernels.ssd import forward_on_one_rank  # noqa: PLC0415  (needs triton)

    y, saved = _call_with_inputs(
        forward_on_one_rank, arguments, _SSD_INPUTS, cu_seqlens, softplus=arguments["dt_softplus"]
    )
    return y, saved


def _ssd_inner_backward(arguments: Arguments, cu_seqlens: Tensor, dy: Tensor, saved: Tensor) -> dict[str, Tensor]:
    from packproof.kernels.ssd import backward_on_one_rank  # noqa: PLC0415  (needs triton)

    backward = partial(backward_on_one_rank, dy)
    gradients = _call_with_inputs(
        backward, arguments, _SSD_INPUTS, cu_seqlens, saved, softplus=arguments["dt_softplus"]
    )
    return dict(zip(_SSD_INPUTS, gradients, strict=True))


def _scan_forward(arguments: Arguments, cu_seqlens: Tensor, leaves: bool) -> Forward:
    from packproof.kernels.selective_scan import forward_over_ranks  # noqa: PLC0415  (needs triton)

    halves = partial(forward_over_ranks, softplus=arguments["delta_softplus"], leaves=leaves)
    y, saved = yield from _call_with_inputs(halves, arguments, _SCAN_INPUTS, cu_seqlens)
    return y, saved


def _scan_backward(
    arguments: Arguments, cu_seqlens: Tensor, dy: Tensor, entering: Tensor | None, saved: Tensor
) -> Backward:
    from packproof.kernels.selective_scan import backward_over_ranks  # noqa: PLC0415  (needs triton)

    backward = partial(backward_over_ranks, dy)
    run = _call_with_inputs(
        backward, arguments, _SCAN_INPUTS, cu_seqlens, entering, saved, softplus=arguments["delta_softplus"]
    )
    return dict(zip(_SCAN_INPUTS, (yield from run), strict=True))


def _scan_inner_forward(arguments: Arguments, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    from packproof.kernels.selective_scan import forward_on_one_rank  # noqa: PLC0415  (needs triton)

    y, saved = _call_with_inputs(
        forward_on_one_rank, arguments, _SCAN_INPUTS, cu_seqlens, softplus=arguments["delta_softplus"]
    )
    return y, saved


def _scan_inner_backward(arguments: Arguments, cu_seqlens: Tensor, dy: Tensor, saved: Tensor) -> dict[str, Tensor]:
    from packproof.kernels.selective_scan import backward_on_one_rank  # noqa: PLC0415  (needs triton)

    backward = partial(backward_on_one_rank, dy)
    gradients = _call_with_inputs(
        backward, arguments, _SCAN_INPUTS, cu_seqlens, saved, softplus=arguments["delta_softplus"]
    )
    return dict(zip(_SCAN_INPUTS, gradients, strict=True))


def _call_with_inputs(
    function: Callable[..., Any], arguments: Arguments, names: Sequence[str], *extra_arguments: Any, **options: Any
) -> Any:
    """Call a function with the named inputs in order, None for an absent one."""
    return function(*(arguments.get(name) for name in names), *extra_arguments, **options)


def _total_step(arguments: Arguments, name: str) -> Tensor:
    """The sum of the time steps of all tokens, in the dtype of A."""
    bias, softplus = arguments.get(f"{name}_bias"), arguments[f"{name}_softplus"]
    return time_step(arguments[name].to(arguments["A"].dtype), bias, softplus).sum(0)
