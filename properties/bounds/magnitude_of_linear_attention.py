"""The magnitude ops of linear attention and its decaying forms: SSD with a decay without a time step."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from packproof.base.arguments import finite_scale
from packproof.properties.bounds.magnitude_ops import (
    UNDERFLOW,
    MagnitudeOp,
    add_results,
    chunked_ssd,
    clamped_exponent,
    magnitude,
)
from packproof.properties.bounds.running_sums import prefix_sums, sequence_start_values
from packproof.properties.bounds.with_derivative import with_derivative
from packproof.properties.declarations.promises import Promises
from packproof.refs.gated import run_over_pack
from packproof.refs.recurrence import expand_groups, split_sequences


def linear_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """Magnitude op of `refs.linear_attention`."""
    return simple_gla(q, k, v, torch.zeros(v.shape[:2], dtype=v.dtype), **options)


def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, scale: float | None = None, initial_states: Tensor | None = None,
    **options: Any,
) -> Any:  # fmt: skip
    """Magnitude op of `refs.simple_gla`."""

    def recurrence(S: Tensor, v: Tensor, q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        exponent, decay = clamped_exponent(magnitude(g)), g.exp()
        decay = with_derivative(decay + UNDERFLOW, decay.detach() * exponent)
        y, h = chunked_ssd(S.mT, v, decay, exponent, k, q)
        return y, h.mT

    return run_over_pack(
        recurrence,
        *(magnitude(q), magnitude(k), magnitude(v), g),
        scale=abs(finite_scale("simple_gla", scale, q.shape[-1])),
        initial_states=magnitude(initial_states),
        **options,
    )


def retention(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, **options: Any) -> Any:
    """Magnitude op of `refs.retention`."""
    return simple_gla(q, k, v, decay.expand(len(v), -1), **options)


def simple_gla_cumsum(promises: Promises) -> MagnitudeOp:
    """Make the magnitude op of a `simple_gla` with decays formed as differences of cumulative sums of g: B + B_E.

    As `magnitude.selective_scan_cumsum`.
    """

    def magnitude_op(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        *,
        initial_states: Tensor | None = None,
        cu_seqlens: Tensor,
        **options: Any,
    ) -> Any:
        def run(q: Tensor, k: Tensor, states: Tensor | None) -> Any:
            return simple_gla(q, k, v, g, initial_states=states, cu_seqlens=cu_seqlens, **options)

        exponent = with_derivative(
            clamped_exponent(g.abs()), magnitude(g)
        )  # the gradient of any gate may have the errors of its sum
        E = prefix_sums(split_sequences(exponent, cu_seqlens), promises, g)[..., None]
        q, k = (expand_groups(magnitude(x), v.shape[1]) for x in (q, k))
        states = None
        if initial_states is not None:
            states = magnitude(initial_states) * (1 + sequence_start_values(E, cu_seqlens)[..., None])
        return add_results(run(q, k * (1 + E), states), run(q * (1 + E), k, initial_states))

    return magnitude_op


def retention_cumsum(promises: Promises) -> Callable[..., Any]:
    """As `simple_gla_cumsum`, for `retention`."""

    def magnitude_op(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, **options: Any) -> Any:
        return simple_gla_cumsum(promises)(q, k, v, decay.expand(len(v), -1), **options)

    return magnitude_op
