"""Steps on a pool of states, in several correct forms of each op, and what goes wrong with slots: planted bugs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof import refs

Step = Callable[..., tuple[Tensor, Tensor]]

OPS = ("causal_conv1d", "selective_scan", "ssd", "gated_delta_rule", "kda")
FORMS: dict[str, tuple[Callable[..., Any], ...]] = {
    "causal_conv1d": (refs.causal_conv1d,),
    "selective_scan": (refs.selective_scan, refs.selective_scan_associative),
    "ssd": (refs.ssd, refs.ssd_quadratic, refs.ssd_chunked),
    "gated_delta_rule": (refs.gated_delta_rule, refs.gated_delta_rule_chunked),
    "kda": (refs.kda, refs.kda_chunked),
}


@dataclass(frozen=True)
class Bug:
    """What goes wrong. law: that shows it. smallest: the lengths that a report of it has (a request without tokens has
    a state too). ops: where it can be."""

    name: str
    law: str
    smallest: tuple[int, ...]
    ops: tuple[str, ...] = OPS
    dtype: str = "float32"


BUGS = (
    Bug("padding is the last slot", "pool", (1,)),
    Bug("padding writes to slot 0", "pool", (1,)),
    Bug("padding gives what slot 0 gives", "pool", (1,)),
    Bug("padding keeps what the output held", "pool", (1,)),
    Bug("padding moves the next tokens up", "pool", (1, 1)),
    Bug("slot 0 is padding", "reference", (1,)),
    Bug("the slot is the number of the request", "pool", (1,)),
    Bug("slots are sorted", "permutation", (0, 1)),
    Bug("slots count modulo the requests", "pool", (1,)),
    Bug("a slot is as wide as one element less", "pool", (0,)),
    Bug("a state is read after its neighbour's is written", "packing", (0, 0)),
    Bug("the next request's state is written", "packing", (0, 0)),
    Bug("a request of one token leaves its state", "reference", (1,)),
    Bug("a request of more tokens begins without a state", "pool", (2,)),
    Bug("the last of several tokens is not in the state", "pool", (2,)),
    Bug("a request without tokens clears its state", "pool", (0,)),
    Bug("a request without tokens takes the state before it", "pool", (0, 0)),
    Bug("slots of no request are cleared", "pool", ()),
    Bug("slots are chosen by products with 0 and 1", "pool", (0,)),
    Bug("the pool is cut off after the requests", "pool", ()),
    Bug("the state is rounded to the dtype of the tokens", "reference", (0,), OPS[1:], "bfloat16"),
    Bug("the window is the other way round", "reference", (0,), OPS[:1]),
    Bug("the window moves the wrong way", "reference", (0,), OPS[:1]),
)


def planted() -> Iterator[tuple[str, Bug]]:
    for bug in BUGS:
        yield from ((op, bug) for op in bug.ops)


def step(op: str, bug: str = "", form: int = 0) -> Step:
    """A kernel of `<op>_update`: without a bug it is correct."""
    packed = FORMS[op][form]

    def kernel(
        *tokens: Tensor, states: Tensor, state_indices: Tensor, cu_seqlens: Tensor, **others: Any
    ) -> tuple[Tensor, Tensor]:
        lengths = [b - a for a, b in pairwise(cu_seqlens.tolist())]
        given = state_indices.tolist()
        slots = _slots(bug, given, len(states))
        initial = _initial(bug, states, slots, lengths)
        y, final = packed(*tokens, **others, cu_seqlens=cu_seqlens, initial_states=initial, return_final_states=True)
        final = _final(bug, final, initial, lengths, y.dtype)
        return _output(bug, y, slots, lengths), _pool(bug, states, final, slots, lengths)

    return kernel


def _slots(bug: str, given: list[int], slots: int) -> list[int]:
    """The slot of each request, -1 for one that has none."""
    if bug in ("padding is the last slot", "padding gives what slot 0 gives"):
        return [slot % slots if "last" in bug else slot for slot in given]
    if bug == "slot 0 is padding":
        return [slot or -1 for slot in given]
    if bug == "the slot is the number of the request":
        return [j if slot >= 0 else -1 for j, slot in enumerate(given)]
    if bug == "slots are sorted":
        return sorted(given)
    if bug == "slots count modulo the requests":
        return [slot % len(given) if slot >= 0 else -1 for slot in given]
    return given


def _initial(bug: str, states: Tensor, slots: list[int], lengths: list[int]) -> Tensor:
    read = [max(slot, 0) for slot in slots]
    initial = states[read] if slots else states[:0]
    if bug == "a slot is as wide as one element less":
        width, flat = states[0].numel(), states.flatten()
        rows = [flat[slot * max(width - 1, 1) :][:width].view(states.shape[1:]) for slot in read]
        initial = torch.stack(rows) if rows else initial
    if bug == "a state is read after its neighbour's is written":
        initial = torch.cat([initial[:1], initial[:-1]])
    if bug == "a request of more tokens begins without a state":
        several = torch.tensor([n > 1 for n in lengths], dtype=torch.bool)
        initial = initial.masked_fill(several.view(-1, *[1] * (states.ndim - 1)), 0)
    if bug == "slots are chosen by products with 0 and 1" and slots:
        chosen = torch.nn.functional.one_hot(torch.tensor(read), len(states)).to(states.dtype)
        initial = torch.einsum("sc,c...->s...", chosen, states)
    if bug == "the window is the other way round":
        initial = initial.flip(-1)
    return initial


def _final(bug: str, final: Tensor, initial: Tensor, lengths: list[int], dtype: torch.dtype) -> Tensor:
    final = final.clone()
    for j, n in enumerate(lengths):
        if bug == "a request of one token leaves its state" and n == 1:
            final[j] = initial[j]
        if bug == "the last of several tokens is not in the state" and n > 1:
            final[j] = initial[j] + 0.5 * (final[j] - initial[j])
        if bug == "a request without tokens clears its state" and n == 0:
            final[j] = 0
        if bug == "a request without tokens takes the state before it" and n == 0 and j:
            final[j] = final[j - 1]
    if bug == "the next request's state is written":
        final = final.roll(-1, 0)
    if bug == "the state is rounded to the dtype of the tokens":
        final = final.to(dtype).to(final.dtype)
    if bug == "the window moves the wrong way":
        final = final.roll(1, -1)
    return final


def _output(bug: str, y: Tensor, slots: list[int], lengths: list[int]) -> Tensor:
    used = [slot >= 0 for slot, n in zip(slots, lengths, strict=True) for _ in range(n)]
    inside = torch.tensor(used + [False] * (len(y) - len(used)), dtype=torch.bool)
    if bug == "padding gives what slot 0 gives":
        return y
    if bug == "padding keeps what the output held":
        return y.masked_fill(~inside.view(-1, *[1] * (y.ndim - 1)), 7)
    if bug == "padding moves the next tokens up":
        return torch.cat([y[inside], torch.zeros_like(y[~inside])])
    return y.masked_fill(~inside.view(-1, *[1] * (y.ndim - 1)), 0)


def _pool(bug: str, states: Tensor, final: Tensor, slots: list[int], lengths: list[int]) -> Tensor:
    pool = torch.zeros_like(states) if bug == "slots of no request are cleared" else states.clone()
    for j, slot in enumerate(slots):
        if slot >= 0 or bug == "padding writes to slot 0":
            pool[max(slot, 0)] = final[j]
    if bug == "the pool is cut off after the requests":
        pool[len(slots) :] = 0
    return pool
