"""What adapters of losses share. The losses have no packing argument: labels are shifted inside sequences before."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from packproof.adapters import adapt
from packproof.adapters.adapter import Adapter


def adapt_loss(function: Callable[..., Tensor], op: str, *conditions: str, **declaration: Any) -> Adapter:
    """The adapter of a loss that is called without metadata, without slack and with at least one token."""
    domain = "; ".join(("tokens > 0", *conditions))
    return adapt(function, op=op, metadata={}, slack=False, domain=domain, **declaration)


def widened(loss: Tensor) -> Tensor:
    """A loss in fp32, or in fp64 as it is; some kernels return the dtype of the logits."""
    return loss.to(torch.promote_types(loss.dtype, torch.float32))
