"""Ops on a pool with a state for each draft, for servers that decode speculatively: a step proposes, the next accepts.

A step runs over the drafts of each request and keeps the state after each of them. Then it is known how many hold. So
the next step goes on from the state after the accepted ones alone: `num_accepted_tokens` (s,), from 1 to a. Prefill
without drafts leaves one state, and counts as one accepted token.

`states` is (c, a, ...): entry i of a slot is the state after draft i. A convolution has its last inputs instead, (c, d,
w-1 + a-1), oldest first: the window after draft i begins at i. Entries of drafts that a step does not have stay. Tokens
past the first a have no entry. Engines call these `causal_conv1d_update`, `selective_state_update` and
`fused_recurrent_*` with `num_accepted_tokens`. Those write into the pool; a reference leaves its inputs unchanged.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof.base.axes import parse, role
from packproof.base.errors import ArgumentError, checked_call
from packproof.base.signatures import (
    CAUSAL_CONV1D_VERIFY,
    GATED_DELTA_RULE_VERIFY,
    KDA_VERIFY,
    SELECTIVE_SCAN_VERIFY,
    SSD_VERIFY,
    Signature,
)
from packproof.base.wording import plural
from packproof.refs.convolution import Activation, causal_conv1d
from packproof.refs.delta_rule import gated_delta_rule, kda
from packproof.refs.pools import check_slots, zero_without_slot
from packproof.refs.recurrence import checked_arguments, split_sequences
from packproof.refs.scan import selective_scan
from packproof.refs.ssd import ssd


def run_on_drafts(
    op: Callable[..., tuple[Tensor, Tensor]],
    signature: Signature,
    states: Tensor,
    state_indices: Tensor,
    num_accepted_tokens: Tensor,
    cu_seqlens: Tensor,
    **arguments: Any,
) -> tuple[Tensor, Tensor]:
    """Run an op with initial and final states on a pool of drafts: returns y and the new pool.

    Entry i of a slot is the final state of a run over the first i + 1 tokens. y is zero for the tokens of a request
    without a slot, and its states are not stored.
    """
    new_states, has_slot = states.clone(), state_indices >= 0
    entries, new_entries = (_entries(pool, arguments) for pool in (states, new_states))
    slots = state_indices.long().clamp(min=0)
    initial = entries.new_zeros(len(slots), *entries.shape[2:])
    if len(states):
        initial = entries[slots, num_accepted_tokens.long() - 1]

    def run(arguments: dict[str, Any], cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        return op(**arguments, cu_seqlens=cu_seqlens, initial_states=initial, return_final_states=True)

    y, _ = run(arguments, cu_seqlens)
    lengths, token_inputs = cu_seqlens.diff().long(), _token_inputs(signature)
    for draft in range(entries.shape[1]):
        requests = ((lengths > draft) & has_slot).nonzero()[:, 0].tolist()
        if not requests:
            break
        rows = torch.cat([piece[: draft + 1] for piece in split_sequences(torch.arange(len(y)), cu_seqlens)])
        first_tokens = {n: x[rows] if n in token_inputs and x is not None else x for n, x in arguments.items()}
        _, state = run(first_tokens, functional.pad(lengths.clamp(max=draft + 1).cumsum(0), (1, 0)))
        for j in requests:
            new_entries[slots[j], draft] = state[j].to(states.dtype)
    return zero_without_slot(y, has_slot, cu_seqlens), new_states


def _entries(pool: Tensor, arguments: Mapping[str, Any]) -> Tensor:
    """(c, a, ...): a view of the pool with the state after each draft, for a convolution its windows."""
    if "weight" not in arguments:
        return pool
    return pool.unfold(-1, arguments["weight"].shape[-1] - 1, 1).movedim(-2, 1)


def _token_inputs(signature: Signature) -> set[str]:
    return {name for name, spec in signature.inputs.items() if role(parse(spec).alternatives[0]) == "token"}


def _run_verify(signature: Signature, op: Callable[..., Any], **call: Any) -> tuple[Tensor, Tensor]:
    """An op of this module, from its arguments by name. op: the same op without a pool."""
    arguments = checked_arguments(signature, call)
    states, accepted = _entries(arguments["states"], arguments), arguments["num_accepted_tokens"].tolist()
    check_slots(signature.op, arguments["state_indices"], len(states))
    for request, count in enumerate(accepted):
        if not 1 <= count <= states.shape[1]:
            drafts = plural(states.shape[1], "draft")
            raise ArgumentError(
                f"{signature.op}: num_accepted_tokens[{request}] is {count} but states has {drafts}\n"
                "    It counts from 1: the token before the drafts always holds."
            )
    return run_on_drafts(op, signature, **arguments)


@checked_call
def causal_conv1d_verify(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    states: Tensor,
    state_indices: Tensor,
    num_accepted_tokens: Tensor,
    cu_seqlens: Tensor,
    activation: Activation = None,
) -> tuple[Tensor, Tensor]:
    """`causal_conv1d_update` of the drafts of a step, after the accepted drafts of the step before.

    states: (c, d, w-1 + a-1) in x's dtype, the last inputs of each request, oldest first.
    num_accepted_tokens: int32 or int64 (s,), from 1 to a. The window of a request begins at entry
    num_accepted_tokens - 1 of its slot.

    Returns y (t, d) and the new pool: the last w-2 inputs of the window, then the first a tokens. All else is as in
    `causal_conv1d_update`.

    >>> import torch
    >>> from packproof.refs import causal_conv1d_verify
    >>> pool, slots, accepted = torch.tensor([[[5.0, 6.0, 7.0]]]), torch.tensor([0]), torch.tensor([2])
    >>> x, weight, cu_seqlens = torch.tensor([[1.0], [2.0]]), torch.ones(1, 2), torch.tensor([0, 2])
    >>> y, pool = causal_conv1d_verify(
    ...     x, weight, states=pool, state_indices=slots, num_accepted_tokens=accepted, cu_seqlens=cu_seqlens
    ... )
    >>> y[:, 0], pool.flatten()
    (tensor([7., 3.]), tensor([1., 2., 7.]))
    """
    return _run_verify(CAUSAL_CONV1D_VERIFY, causal_conv1d, **locals())


@checked_call
def selective_scan_verify(
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
    num_accepted_tokens: Tensor,
    cu_seqlens: Tensor,
    delta_softplus: bool = False,
) -> tuple[Tensor, Tensor]:
    """`selective_scan_update` of the drafts of a step, after the accepted drafts of the step before.

    states: (c, a, d, n) in A's dtype.

    num_accepted_tokens is as in `ssd_verify`, all else as in `selective_scan_update`.

    >>> import torch
    >>> from packproof.refs import selective_scan_verify
    >>> u, A, pool = torch.ones(1, 1), torch.zeros(1, 1), torch.tensor([4.0, 8.0]).view(1, 2, 1, 1)
    >>> step = {"state_indices": torch.tensor([0]), "cu_seqlens": torch.tensor([0, 1])}
    >>> y, _ = selective_scan_verify(u, u, A, u, u, states=pool, num_accepted_tokens=torch.tensor([2]), **step)
    >>> y.item()
    9.0
    """
    return _run_verify(SELECTIVE_SCAN_VERIFY, selective_scan, **locals())


@checked_call
def ssd_verify(
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
    num_accepted_tokens: Tensor,
    cu_seqlens: Tensor,
    dt_softplus: bool = False,
) -> tuple[Tensor, Tensor]:
    """`ssd_update` of the drafts of a step, after the accepted drafts of the step before.

    states: (c, a, h, p, n) in A's dtype.
    num_accepted_tokens: int32 or int64 (s,), from 1 to a. A request goes on from entry num_accepted_tokens - 1 of its
    slot. The state after each of its first a tokens is written to the entry of the token.

    All else is as in `ssd_update`.

    >>> import torch
    >>> from packproof.refs import ssd_verify
    >>> x, dt, B, pool = torch.ones(2, 1, 1), torch.ones(2, 1), torch.ones(2, 1, 1), torch.tensor([4.0, 8.0])
    >>> slots, accepted, cu_seqlens = torch.tensor([0]), torch.tensor([1]), torch.tensor([0, 2])
    >>> step = {"state_indices": slots, "num_accepted_tokens": accepted, "cu_seqlens": cu_seqlens}
    >>> y, pool = ssd_verify(x, dt, torch.zeros(1), B, B, states=pool.view(1, 2, 1, 1, 1), **step)
    >>> y.flatten(), pool.flatten()
    (tensor([5., 6.]), tensor([5., 6.]))
    """
    return _run_verify(SSD_VERIFY, ssd, **locals())


@checked_call
def gated_delta_rule_verify(
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
    num_accepted_tokens: Tensor,
    cu_seqlens: Tensor,
    qk_l2norm: bool = False,
    beta_sigmoid: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`gated_delta_rule_update` of the drafts of a step, after the accepted drafts of the step before.

    states: (c, a, hv, k, p) in fp32, or fp64 with fp64 tokens.

    num_accepted_tokens is as in `ssd_verify`, all else as in `gated_delta_rule_update`.

    >>> import torch
    >>> from packproof.refs import gated_delta_rule_verify
    >>> k, g, beta, pool = torch.ones(1, 1, 1), torch.zeros(1, 1), torch.zeros(1, 1), torch.tensor([4.0, 8.0])
    >>> step = {"state_indices": torch.tensor([0]), "cu_seqlens": torch.tensor([0, 1])}
    >>> accepted, states = torch.tensor([2]), pool.view(1, 2, 1, 1, 1)
    >>> y, _ = gated_delta_rule_verify(k, k, k, g, beta, states=states, num_accepted_tokens=accepted, **step)
    >>> y.item()
    8.0
    """
    return _run_verify(GATED_DELTA_RULE_VERIFY, gated_delta_rule, **locals())


@checked_call
def kda_verify(
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
    num_accepted_tokens: Tensor,
    cu_seqlens: Tensor,
    qk_l2norm: bool = False,
    beta_sigmoid: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`kda_update` of the drafts of a step, after the accepted drafts of the step before.

    states: (c, a, h, k, p) in fp32, or fp64 with fp64 tokens.

    num_accepted_tokens is as in `ssd_verify`, all else as in `kda_update`.

    >>> import torch
    >>> from packproof.refs import kda_verify
    >>> k, g, beta, pool = torch.ones(1, 1, 1), torch.zeros(1, 1, 1), torch.zeros(1, 1), torch.tensor([4.0, 8.0])
    >>> step = {"state_indices": torch.tensor([0]), "cu_seqlens": torch.tensor([0, 1])}
    >>> accepted, states = torch.tensor([2]), pool.view(1, 2, 1, 1, 1)
    >>> y, _ = kda_verify(k, k, k, g, beta, states=states, num_accepted_tokens=accepted, **step)
    >>> y.item()
    8.0
    """
    return _run_verify(KDA_VERIFY, kda, **locals())
