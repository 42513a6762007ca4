"""Ops on a pool of states, for servers: each request starts from the state in its slot; the new state goes back there.

A step of a server packs the tokens of all its requests: one token each to decode, more to prefill, in chunks or at
once. `states` (c, ...) has one slot for every request the server can hold. `state_indices` (s,) has the slot of each
request of the step, or -1 for a request that only pads the step, as in a CUDA graph. Elsewhere these ops are called
`selective_state_update` (Mamba), `causal_conv1d_update` and `fused_recurrent_*`. Those write into the pool; a reference
leaves its inputs unchanged and returns the new pool.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from packproof.base.errors import ArgumentError, checked_call
from packproof.base.signatures import (
    CACHE_WRITE,
    CAUSAL_CONV1D_UPDATE,
    GATED_DELTA_RULE_UPDATE,
    KDA_UPDATE,
    SELECTIVE_SCAN_UPDATE,
    SSD_UPDATE,
    Signature,
)
from packproof.base.wording import plural
from packproof.refs.convolution import Activation, causal_conv1d
from packproof.refs.delta_rule import gated_delta_rule, kda
from packproof.refs.recurrence import checked_arguments
from packproof.refs.scan import selective_scan
from packproof.refs.ssd import ssd


def run_on_pool(
    op: Callable[..., tuple[Tensor, Tensor]],
    states: Tensor,
    state_indices: Tensor,
    cu_seqlens: Tensor,
    **arguments: Any,
) -> tuple[Tensor, Tensor]:
    """Run an op with initial and final states on a pool: returns y and the new pool.

    y is zero for the tokens of a request without a slot, and its state is not stored.
    """
    has_slot = state_indices >= 0
    slots = state_indices.long().clamp(min=0)
    initial = states[slots] if len(states) else states.new_zeros(len(slots), *states.shape[1:])
    y, final = op(**arguments, cu_seqlens=cu_seqlens, initial_states=initial, return_final_states=True)
    new_states = states.clone()
    new_states[slots[has_slot]] = final[has_slot].to(states.dtype)
    return zero_without_slot(y, has_slot, cu_seqlens), new_states


def zero_without_slot(y: Tensor, has_slot: Tensor, cu_seqlens: Tensor) -> Tensor:
    """y with zeros for the tokens of requests without a slot, and in slack."""
    row_has_slot = has_slot.repeat_interleave(cu_seqlens.diff().long())
    is_output_row = torch.cat([row_has_slot, row_has_slot.new_zeros(len(y) - len(row_has_slot))])
    return torch.where(is_output_row.view(-1, *[1] * (y.ndim - 1)), y, torch.zeros_like(y))


def _run_update(signature: Signature, op: Callable[..., Any], **call: Any) -> tuple[Tensor, Tensor]:
    """An op of this module, from its arguments by name. op: the same op without a pool."""
    arguments = checked_arguments(signature, call)
    check_slots(signature.op, arguments["state_indices"], len(arguments["states"]))
    return run_on_pool(op, **arguments)


def check_slots(
    function: str,
    slots: Tensor,
    count: int,
    names: tuple[str, str] = ("state_indices", "states"),
    owner: str = "request",
) -> None:
    """Raise ArgumentError unless each request, or token, has a slot of its own in the pool, or none.

    count: slots of the pool.
    names: of the arguments, the slots and the pool.
    """
    owners: dict[int, int] = {}
    for number, slot in enumerate(slots.tolist()):
        if not -1 <= slot < count:
            raise ArgumentError(
                f"{function}: {names[0]}[{number}] is {slot} but {names[1]} has {plural(count, 'slot')}\n"
                f"    A slot counts from 0; -1 is for a {owner} that has none."
            )
        if slot >= 0 and owners.setdefault(slot, number) != number:
            raise ArgumentError(
                f"{function}: {names[0]} gives slot {slot} to {owner}s {owners[slot]} and {number}\n"
                f"    Two {owner}s of one step cannot share a state; -1 is for those that only pad."
            )


@checked_call
def causal_conv1d_update(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    states: Tensor,
    state_indices: Tensor,
    cu_seqlens: Tensor,
    activation: Activation = None,
) -> tuple[Tensor, Tensor]:
    """`causal_conv1d` of the tokens of a step, each request from its slot of a pool.

    states: (c, d, w-1) in x's dtype, the last inputs of each request, oldest first.
    state_indices: int32 or int64 (s,), the slot of each request, -1 for a request that only pads.

    All else is as in `causal_conv1d`.

    Returns y (t, d), zero in slack and for requests without a slot, and the new pool (c, d, w-1). Slots without a
    request are unchanged. Raises LayoutError, and ArgumentError, also if two requests share a slot.

    >>> import torch
    >>> from packproof.refs import causal_conv1d_update
    >>> pool, slots = torch.tensor([[[5.0]], [[6.0]], [[7.0]]]), torch.tensor([2, -1])
    >>> x, weight, cu_seqlens = torch.tensor([[1.0], [1.0]]), torch.ones(1, 2), torch.tensor([0, 1, 2])
    >>> y, pool = causal_conv1d_update(x, weight, states=pool, state_indices=slots, cu_seqlens=cu_seqlens)
    >>> y[:, 0], pool.flatten()
    (tensor([8., 0.]), tensor([5., 6., 1.]))
    """
    return _run_update(CAUSAL_CONV1D_UPDATE, causal_conv1d, **locals())


@checked_call
def selective_scan_update(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    *,
    states: Tensor,
    state_indices: Tensor,
    cu_seqlens: Tensor,
    delta_softplus: bool = False,
) -> tuple[Tensor, Tensor]:
    """`selective_scan` of the tokens of a step, each request from its slot of a pool.

    states: (c, d, n) in A's dtype.

    state_indices and the results are as in `causal_conv1d_update`; all else as in `selective_scan`.

    >>> import torch
    >>> from packproof.refs import selective_scan_update
    >>> u, B, pool = torch.ones(2, 1), torch.ones(2, 1), torch.tensor([[[4.0]], [[8.0]]])
    >>> slots, cu_seqlens = torch.tensor([1, -1]), torch.tensor([0, 1, 2])
    >>> y, pool = selective_scan_update(
    ...     u, u, torch.zeros(1, 1), B, B, states=pool, state_indices=slots, cu_seqlens=cu_seqlens
    ... )
    >>> y[:, 0], pool.flatten()
    (tensor([9., 0.]), tensor([4., 9.]))
    """
    return _run_update(SELECTIVE_SCAN_UPDATE, selective_scan, **locals())


@checked_call
def ssd_update(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    states: Tensor,
    state_indices: Tensor,
    cu_seqlens: Tensor,
    dt_softplus: bool = False,
) -> tuple[Tensor, Tensor]:
    """`ssd` of the tokens of a step, each request from its slot of a pool.

    states: (c, h, p, n) in A's dtype.

    state_indices and the results are as in `causal_conv1d_update`; all else as in `ssd`.

    >>> import torch
    >>> from packproof.refs import ssd_update
    >>> x, dt, B, pool = torch.ones(2, 1, 1), torch.ones(2, 1), torch.ones(2, 1, 1), torch.tensor([4.0, 8.0])
    >>> slots, cu_seqlens = torch.tensor([1, -1]), torch.tensor([0, 1, 2])
    >>> y, pool = ssd_update(
    ...     x, dt, torch.zeros(1), B, B, states=pool.view(2, 1, 1, 1), state_indices=slots, cu_seqlens=cu_seqlens
    ... )
    >>> y[:, 0, 0], pool.flatten()
    (tensor([9., 0.]), tensor([4., 9.]))
    """
    return _run_update(SSD_UPDATE, ssd, **locals())


@checked_call
def gated_delta_rule_update(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    states: Tensor,
    state_indices: Tensor,
    cu_seqlens: Tensor,
    qk_l2norm: bool = False,
    beta_sigmoid: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`gated_delta_rule` of the tokens of a step, each request from its slot of a pool.

    states: (c, hv, k, p) in fp32, or fp64 with fp64 tokens.

    state_indices and the results are as in `causal_conv1d_update`; all else as in `gated_delta_rule`.

    >>> import torch
    >>> from packproof.refs import gated_delta_rule_update
    >>> k, v, beta = torch.ones(2, 1, 1), torch.full((2, 1, 1), 5.0), torch.ones(2, 1)
    >>> pool, slots, cu_seqlens = torch.tensor([4.0, 8.0]), torch.tensor([1, -1]), torch.tensor([0, 1, 2])
    >>> y, pool = gated_delta_rule_update(
    ...     k, k, v, -beta, beta, states=pool.view(2, 1, 1, 1), state_indices=slots, cu_seqlens=cu_seqlens
    ... )
    >>> y[:, 0, 0], pool.flatten()
    (tensor([5., 0.]), tensor([4., 5.]))
    """
    return _run_update(GATED_DELTA_RULE_UPDATE, gated_delta_rule, **locals())


@checked_call
def kda_update(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    states: Tensor,
    state_indices: Tensor,
    cu_seqlens: Tensor,
    qk_l2norm: bool = False,
    beta_sigmoid: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`kda` of the tokens of a step, each request from its slot of a pool.

    states: (c, h, k, p) in fp32, or fp64 with fp64 tokens.

    state_indices and the results are as in `causal_conv1d_update`; all else as in `kda`.

    >>> import torch
    >>> from packproof.refs import kda_update
    >>> k, v, beta = torch.ones(2, 1, 1), torch.full((2, 1, 1), 5.0), torch.ones(2, 1)
    >>> pool, slots, cu_seqlens = torch.tensor([4.0, 8.0]), torch.tensor([1, -1]), torch.tensor([0, 1, 2])
    >>> y, pool = kda_update(
    ...     k, k, v, -k, beta, states=pool.view(2, 1, 1, 1), state_indices=slots, cu_seqlens=cu_seqlens
    ... )
    >>> y[:, 0, 0], pool.flatten()
    (tensor([5., 0.]), tensor([4., 5.]))
    """
    return _run_update(KDA_UPDATE, kda, **locals())


@checked_call
def cache_write(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, *, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor]:
    """Write the keys and values of the tokens of a step into the slots of a cache, as `reshape_and_cache` of vLLM does.

    k, k_cache: (t, h, k) and (c, h, k), in one dtype.
    v, v_cache: (t, h, v) and (c, h, v), in k's dtype.
    slot_mapping: int32 or int64 (t,), the slot of each token, -1 for a token that only pads the step.
    cu_seqlens: int32 or int64 (s + 1,). Rows past its end are slack, and written nowhere.

    Returns the new caches; slots without a token are unchanged. Raises LayoutError, and ArgumentError, also if two
    tokens share a slot.

    >>> import torch
    >>> from packproof.refs import cache_write
    >>> rows, cache, slots = torch.tensor([[[1.0]], [[2.0]]]), torch.zeros(3, 1, 1), torch.tensor([2, -1])
    >>> k_cache, _ = cache_write(rows, rows, cache, cache, slots, cu_seqlens=torch.tensor([0, 2]))
    >>> k_cache.flatten()
    tensor([0., 0., 1.])
    """
    checked_arguments(CACHE_WRITE, locals())
    tokens = int(cu_seqlens[-1])
    check_slots("cache_write", slot_mapping[:tokens], len(k_cache), ("slot_mapping", "k_cache"), "token")
    rows = (slot_mapping[:tokens] >= 0).nonzero()[:, 0]
    slots = slot_mapping[rows].long()
    return k_cache.index_copy(0, slots, k[rows]), v_cache.index_copy(0, slots, v[rows])
