"""Ops on a pool of states, for inference, made of the ops on packs."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

from torch import Tensor

from packproof.base.signatures import Signature
from packproof.properties.ops.op import Op
from packproof.properties.ops.signature_op import op_of_signature
from packproof.refs.drafts import run_on_drafts
from packproof.refs.pools import run_on_pool

RunOnPool = Callable[..., tuple[Tensor, Tensor]]
_DRAFTS = (3, 4, 1, 2, 8)  # the tokens of a step, beside the sizes of an op in their order


def op_on_pool(
    signature: Signature, op: Op, reference: Callable[..., Any], run: RunOnPool = run_on_pool, **more_sizes: int
) -> Op:
    """The same op on a pool of states, for inference: without gradients.

    run: runs a function of the op on the pool.
    more_sizes: sizes of axes that the op does not have.
    """
    absolute, cumsum, roundings = op.absolute, op.cumsum, op.roundings
    draws = {"state_indices": "slot|c", "num_accepted_tokens": "accepted|a", **op.draws}
    pool_op = op_of_signature(
        signature,
        reference=reference,
        options={name: values for name, values in op.options.items() if name not in op.carry[2:]} if op.carry else {},
        absolute=absolute and partial(_pool_magnitude, run, absolute),
        cumsum=cumsum and (lambda promises: partial(_pool_magnitude, run, cumsum(promises))),
        roundings=roundings
        and replace(
            roundings,
            make=_on_pool(run, roundings.make),
            operands=roundings.operands and _on_pool(run, roundings.operands),
        ),
        sizes=tuple({**sizes, "c": "slots", **more_sizes} for sizes in op.sizes),
        model_sizes=tuple({**sizes, "c": "slots", **more_sizes} for sizes in op.model_sizes),
        draws={name: draw for name, draw in draws.items() if name in signature.inputs},
        pool=("state_indices", "states", "new_states"),
        window=op.window,
        matmul=op.matmul,
    )
    return replace(pool_op, where=op.where, constants=frozenset(signature.inputs))


def _on_pool(run: RunOnPool, make: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the roundings of an op on a pool, from how those of the same op on states are made."""
    return lambda promises, signs: partial(run, make(promises, signs))


def _pool_magnitude(run: RunOnPool, magnitude: Callable[..., Any], **arguments: Any) -> tuple[Tensor, Tensor]:
    """A magnitude op on a pool. Idle slots keep their absolute values."""
    y, states = run(magnitude, **arguments)
    return y, states.abs()


def op_on_drafts(signature: Signature, op: Op, reference: Callable[..., Any]) -> Op:
    """The same op on a pool with a state for each draft of a step; each set of sizes has another number of them."""
    verify_op = op_on_pool(signature, op, reference, partial(run_on_drafts, signature=signature), a=1)
    sizes, model_sizes = (
        tuple({**axes, "a": drafts} for axes, drafts in zip(choices, cycle(_DRAFTS), strict=False))
        for choices in (verify_op.sizes, verify_op.model_sizes)
    )
    return replace(verify_op, sizes=sizes, model_sizes=model_sizes)
