"""Steps that accept and reject drafts, as engines take them, and what goes wrong with the rejected ones."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from packproof.base.signatures import SIGNATURES
from packproof.refs.drafts import run_on_drafts
from tests.properties.pool_bugs import FORMS

Step = Callable[..., tuple[Tensor, Tensor]]

BUGS = {  # the laws that show each, and the lengths of the smallest step that does
    "rejected drafts stay": ("reference", "pool"),
    "one draft too few": ("reference", "pool"),
    "accepted drafts are those of the next request": ("packing", "permutation"),
    "accepted drafts are those of the slot of this number": ("packing", "pool"),
    "the state is the mean of the drafts by a mask of products": ("pool",),
    "only the last draft is stored": ("reference", "pool"),
    "all drafts but the accepted ones are cleared": ("reference", "pool"),
    "padding writes to the last slot": ("pool",),
}


def verify(op: str, bug: str = "", form: int = 0) -> Step:
    """A kernel of `<op>_verify`: without a bug it is correct."""
    signature, packed = SIGNATURES[f"{op}_verify"], FORMS[op][form]

    def kernel(*tokens: Tensor, cu_seqlens: Tensor, **arguments: Any) -> tuple[Tensor, Tensor]:
        arguments |= dict(zip(signature.inputs, tokens, strict=False))
        slots, accepted = arguments["state_indices"], arguments["num_accepted_tokens"]
        drafts = _drafts(arguments["states"], arguments)
        if bug == "padding writes to the last slot" and len(slots):
            slots = torch.where(slots < 0, len(arguments["states"]) - 1, slots)
        changed = {
            "rejected drafts stay": lambda: torch.full_like(accepted, drafts),
            "one draft too few": lambda: (accepted - 1).clamp(min=1),
            "accepted drafts are those of the next request": lambda: accepted.roll(-1),
            "accepted drafts are those of the slot of this number": lambda: (
                accepted[slots.long().clamp(min=0) % len(accepted)] if len(accepted) else accepted
            ),
        }.get(bug, lambda: accepted)()
        if bug == "the state is the mean of the drafts by a mask of products":
            arguments["states"] = arguments["states"] + 0 * arguments["states"].sum(
                1 if op != "causal_conv1d" else -1, True
            )
        inputs = {**arguments, "state_indices": slots, "num_accepted_tokens": changed}
        y, states = run_on_drafts(packed, signature, cu_seqlens=cu_seqlens, **inputs)
        lengths = [end - start for start, end in pairwise(cu_seqlens.tolist())]
        return y, _stored(bug, op, states, arguments["states"], list(zip(slots.tolist(), lengths, strict=True)), drafts)

    return kernel


def _drafts(states: Tensor, arguments: dict[str, Any]) -> int:
    """The drafts of a slot."""
    return states.shape[-1] - arguments["weight"].shape[-1] + 2 if "weight" in arguments else states.shape[1]


def _stored(bug: str, op: str, states: Tensor, before: Tensor, requests: list[tuple[int, int]], drafts: int) -> Tensor:
    states = states.clone()
    for slot, length in requests:
        if slot < 0 or not length:
            continue
        written = min(length, drafts)
        if bug == "only the last draft is stored" and op != "causal_conv1d":
            states[slot, : written - 1] = before[slot, : written - 1]
        elif bug == "only the last draft is stored":
            states[slot, :, : written - 1] = before[slot, :, : written - 1]
        if bug == "all drafts but the accepted ones are cleared" and op != "causal_conv1d":
            states[slot, written:] = 0
        elif bug == "all drafts but the accepted ones are cleared":
            states[slot, :, written + states.shape[-1] - drafts :] = 0
    return states
