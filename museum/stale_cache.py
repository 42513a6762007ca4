"""Bugs of caches between calls: boundaries of another call, code compiled for another case, stale state.

Each kernel of this module is correct in the first call of a process, or in all but the first.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from packproof import refs
from packproof.base.errors import copy_signature_of
from packproof.museum.custom_backward import Outputs, join_outputs, single_sequence_offsets, split_outputs

Key = tuple[Any, ...]

_by_address: dict[Key, Tensor] = {}
_by_identity: dict[Key, tuple[Tensor, Tensor]] = {}
_by_size: dict[Key, Tensor] = {}
_mailbox: dict[str, Tensor] = {}
_compiled: dict[Key, Any] = {}
_slots: dict[Key, Tensor] = {}
_seen: set[Key] = set()


def _get_or_make(table: dict[Key, Tensor], key: Key, make: Callable[[], Tensor]) -> Tensor:
    if key not in table:
        table[key] = make()
    return table[key]


@copy_signature_of(refs.causal_conv1d)
def table_by_address(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, **options: Any
) -> Outputs:
    """The table made from the offsets is cached by their address; other offsets may get the same address later."""
    key = (cu_seqlens.data_ptr(), len(cu_seqlens), len(x))
    cached_offsets = _get_or_make(_by_address, key, cu_seqlens.clone)
    return refs.causal_conv1d(x, weight, bias, cu_seqlens=cached_offsets, **options)


@copy_signature_of(refs.selective_scan)
def table_by_identity(u: Tensor, cu_seqlens: Tensor, **others: Any) -> Outputs:
    """The table is cached by the identity of the offsets; they may be edited in place later."""
    _, cached_offsets = _by_identity.setdefault((id(cu_seqlens), len(u)), (cu_seqlens, cu_seqlens.clone()))
    return refs.selective_scan(u, cu_seqlens=cached_offsets, **others)


def table_by_size(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    """The table is cached by the numbers of sequences, rows and positions; other packs have the same numbers."""
    key = (len(cu_seqlens), len(x), len(cos), cu_seqlens.dtype)
    cached_offsets = _get_or_make(_by_size, key, cu_seqlens.clone)
    return refs.rope(x, cos, sin, cu_seqlens=cached_offsets, interleaved=interleaved)


def boundaries_of_the_last_pack(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, activation: Any = None
) -> Outputs:
    """Packed calls leave their boundaries in a mailbox. A later single sequence of equal length picks them up."""
    if len(cu_seqlens) > 2:
        _mailbox["offsets"] = cu_seqlens.clone()
    elif "offsets" in _mailbox and int(_mailbox["offsets"][-1]) == len(x):
        cu_seqlens = _mailbox["offsets"]
    return refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)


@copy_signature_of(refs.ssd)
def compiled_without_boundaries(x: Tensor, cu_seqlens: Tensor, **others: Any) -> Outputs:
    """The key of compiled and tuned code has the shape, but not the presence of boundaries."""
    packed = _compiled.setdefault((x.shape[1:], x.dtype, "packed"), len(cu_seqlens) > 2)
    if packed or others.get("initial_states") is not None or others.get("return_final_states"):
        return refs.ssd(x, cu_seqlens=cu_seqlens, **others)
    return refs.ssd(x, cu_seqlens=single_sequence_offsets(cu_seqlens), **others)


@copy_signature_of(refs.attention)
def compiled_for_another_mask(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, **options: Any) -> Outputs:
    """The key of the compiled kernels lacks the mask's flag."""
    compiled_causal = _compiled.setdefault((q.shape[1:], v.shape[2], "causal"), causal)
    return refs.attention(q, k, v, causal=compiled_causal, **options)


@copy_signature_of(refs.causal_conv1d)
def state_advanced_by_the_tuner(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor, **options: Any
) -> Outputs:
    """The tuner tries a kernel with an in-place update of the state: the first call updates it twice."""
    y, final = split_outputs(refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, **options))
    key = (x.shape[1], weight.shape[1], "tuned")
    if final is not None and key not in _seen:
        _seen.add(key)
        _, final = split_outputs(
            refs.causal_conv1d(x, weight, bias, cu_seqlens=cu_seqlens, **{**options, "initial_states": final})
        )
    return join_outputs(y, final)


@copy_signature_of(refs.selective_scan)
def first_token_taken_for_a_step(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    **other_arguments: Any,
) -> Outputs:
    """A sequence of one token is taken for a decoding step: it continues from the state in its cache slot."""
    states = A.new_zeros(len(cu_seqlens) - 1, *A.shape) if initial_states is None else initial_states
    cached_states = _slots.get(A.shape, A.new_zeros(0, *A.shape))[: len(states)].to(states).detach()
    cached_states = torch.cat([cached_states, states.detach()[len(cached_states) :]])
    is_step = (cu_seqlens.diff() == 1) & (initial_states is None)
    states = torch.where(is_step[:, None, None], cached_states, states)
    arguments = {**other_arguments, "return_final_states": True}
    y, final = split_outputs(
        refs.selective_scan(u, delta, A, cu_seqlens=cu_seqlens, initial_states=states, **arguments)
    )
    assert final is not None
    _slots[A.shape] = final.detach().clone()
    return join_outputs(y, final if other_arguments.get("return_final_states") else None)


@copy_signature_of(refs.attention)
def semaphore_not_reset(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, **options: Any) -> Outputs:
    """A counter of finished blocks is not reset when metadata is reused: the second call skips the last block."""
    y, lse = split_outputs(refs.attention(q, k, v, cu_seqlens=cu_seqlens, **options))
    key = (cu_seqlens.data_ptr(), len(cu_seqlens), len(q))
    if key in _seen and len(q):
        y = torch.cat([y[:-1], torch.zeros_like(y[-1:])])
    _seen.add(key)
    return join_outputs(y, lse)


@copy_signature_of(refs.attention)
def summed_in_any_order(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, **options: Any) -> Outputs:
    """The gradients of a key's query heads are added as they become ready, though a fixed order is promised."""
    groups = q.shape[1] // k.shape[1]
    order = torch.randperm(groups)
    heads = (torch.arange(k.shape[1])[:, None] * groups + order).flatten()
    inverse = heads.argsort()
    expanded_k, expanded_v = (_AnyOrder.apply(x, groups) for x in (k, v))  # type: ignore[no-untyped-call]
    sinks = None if sinks is None else sinks[heads]
    y, lse = split_outputs(refs.attention(q[:, heads], expanded_k[:, heads], expanded_v[:, heads], sinks, **options))
    return join_outputs(y[:, inverse], None if lse is None else lse[:, inverse])


class _AnyOrder(torch.autograd.Function):
    """Keys or values for each query head; backward adds the heads in a random order, in the dtype of the tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int) -> Tensor:
        ctx.groups = groups
        return x.repeat_interleave(groups, 1)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        parts = d.reshape(len(d), -1, ctx.groups, d.shape[2]).unbind(2)
        dx = torch.zeros_like(parts[0])
        for i in torch.randperm(ctx.groups).tolist():
            dx = dx + parts[i]
        return dx, None
