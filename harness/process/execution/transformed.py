"""The ways a kernel is called inside transformations of torch.func: `vjp`, and `vmap` over a batch of packs.

Each function is as those of `modes`. A kernel may raise here: torch's transformations need more than autograd does.
"""

# mypy: allow-untyped-calls

from collections.abc import Callable
from dataclasses import replace

import torch

from packproof.harness.process.execution.invocation import Invocation, Tensors
from packproof.harness.process.execution.snapshot import Snapshot


def functional(invocation: Invocation) -> tuple[Snapshot, Tensors]:
    """The outputs and gradients of torch.func.vjp. An input that autograd does not reach has a gradient of zeros."""
    invocation.stage = "under torch.func.vjp: "
    names = invocation.call.wrt or tuple(_floats(invocation))
    tensors = {name: invocation.inputs[name].detach() for name in names}
    outputs, pull_back, *_ = torch.func.vjp(_outputs_of(invocation), tensors)
    snapshot = Snapshot.take(invocation, outputs)
    if not invocation.call.wrt:
        return snapshot, {}
    invocation.stage = "in the backward pass of torch.func.vjp: "
    given = invocation.cotangents
    incoming = {n: given[n].to(y.dtype) if n in given else torch.zeros_like(y) for n, y in outputs.items()}
    return snapshot, pull_back(incoming)[0]


def vectorised(invocation: Invocation) -> tuple[Snapshot, Tensors]:
    """Outputs alone, under torch.vmap over three packs: those of the second. The others have parts of its values.

    Inside of vmap no tensor says that it requires a gradient, by which a kernel may choose what to compute.
    """
    invocation.stage = "under torch.vmap: "
    batch = {name: torch.stack([x / 2, x, x / 4]) for name, x in _floats(invocation).items()}
    outputs = torch.vmap(_outputs_of(invocation))(batch)
    return Snapshot.take(invocation, {name: y[1] for name, y in outputs.items()}), {}


def _floats(invocation: Invocation) -> Tensors:
    return {name: x.detach() for name, x in invocation.inputs.items() if x.is_floating_point()}


def _outputs_of(invocation: Invocation) -> Callable[[Tensors], Tensors]:
    """The call as a function of some of its tensors, by name."""
    return lambda tensors: replace(invocation, inputs={**invocation.inputs, **tensors}).forward()
