"""Bugs of the time step: softplus of large arguments."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof import refs
from packproof.base.errors import copy_signature_of
from packproof.museum.custom_backward import Outputs

LINEAR = 20


class _Shortcut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor) -> Tensor:
        ctx.save_for_backward(raw)
        return functional.softplus(raw, threshold=40)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        (raw,) = ctx.saved_tensors
        return torch.where(raw > LINEAR, d * d, d * raw.sigmoid())


def _raw(step: Tensor, bias: Tensor | None) -> Tensor:
    step = step.to(torch.promote_types(step.dtype, torch.float32))
    return step if bias is None else step + bias


@copy_signature_of(refs.ssd)
def softplus_gives_its_gradient(
    x: Tensor, dt: Tensor, A: Tensor, *, dt_bias: Tensor | None = None, dt_softplus: bool = False, **options: Any
) -> Outputs:
    """Where softplus is the identity, backward multiplies the incoming gradient by itself instead of by 1."""
    if not dt_softplus:
        return refs.ssd(x, dt, A, dt_bias=dt_bias, **options)
    step: Tensor = _Shortcut.apply(_raw(dt, dt_bias))  # type: ignore[no-untyped-call]
    return refs.ssd(x, step.to(dt), A, **options)


@copy_signature_of(refs.selective_scan)
def softplus_as_it_is_written(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    *,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    **options: Any,
) -> Outputs:
    """log(1 + exp(x)) is infinite long before x is."""
    if not delta_softplus:
        return refs.selective_scan(u, delta, A, delta_bias=delta_bias, **options)
    step = (1 + _raw(delta, delta_bias).exp()).log()
    return refs.selective_scan(u, step.to(delta), A, **options)
