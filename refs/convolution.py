"""Causal depthwise convolution of Mamba (Gu & Dao 2023, fig. 3): y[t] = act(bias + Σ_j weight[:, j] x[t-(w-1)+j])."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from packproof.refs.arguments import bind, check_option, check_options
from packproof.refs.errors import ArgumentError
from packproof.refs.recurrence import (
    join_sequences,
    join_states,
    over_time,
    split_sequences,
    split_states,
    to_compute_dtype,
)
from packproof.refs.signatures import CAUSAL_CONV1D

Activation = Literal["silu"] | None


def causal_conv1d_step(
    state: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Activation = None
) -> tuple[Tensor, Tensor]:
    """Advance one token: state is (d, w-1), the inputs before this one, oldest first; x (d,), weight (d, w), bias (d,).

    Returns the new state and y of shape (d,). Leading batch axes of state and x are kept. Raises ArgumentError for
    shapes that do not fit and for an unknown activation.
    """
    check_option("causal_conv1d_step", "activation", activation, CAUSAL_CONV1D.options["activation"])
    if state.shape != (*x.shape, weight.shape[-1] - 1) or x.shape[-1:] != weight.shape[:1]:
        came = ", ".join(f"{n} {tuple(v.shape)}" for n, v in (("state", state), ("x", x), ("weight", weight)))
        raise ArgumentError(f"causal_conv1d_step: {came} came but state (d, w-1), x (d,), weight (d, w) was expected")
    window = torch.cat([state, x[..., None]], dim=-1)
    y = (weight * window).sum(-1)
    if bias is not None:
        y = y + bias
    return window[..., 1:], functional.silu(y) if activation else y


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    initial_states: Tensor | None = None,
    activation: Activation = None,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolve each sequence of a pack with its own past only.

    x: (t, d). weight: (d, w), the last tap meets the token itself. bias: (d,). initial_states: (s, d, w-1), the inputs
    before each sequence, oldest first; zeros if left out. All of one dtype: fp64, fp32, bf16 or fp16 (the last two
    compute in fp32). cu_seqlens: int32 or int64 (s + 1,). activation: None or "silu".

    Returns y (t, d), zero in slack, and with return_final_states also the last w-1 inputs of each sequence (s, d, w-1),
    which begin with part of the initial state where the sequence is shorter. Raises ArgumentError and LayoutError.
    """
    sizes = bind(CAUSAL_CONV1D, cu_seqlens, x=x, weight=weight, bias=bias, initial_states=initial_states, values=True)
    check_options(CAUSAL_CONV1D, activation=activation)
    taps, offset = to_compute_dtype(weight), None if bias is None else to_compute_dtype(bias)
    shape = (sizes["d"], sizes["w"] - 1)

    def step(state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        return causal_conv1d_step(state, token, taps, offset, activation)

    ys, finals = [], []
    for tokens, state in zip(
        split_sequences(x, cu_seqlens), split_states(initial_states, sizes["s"], shape, x), strict=True
    ):
        y, final = over_time(step, to_compute_dtype(state), to_compute_dtype(tokens))
        ys.append(y)
        finals.append(final.to(x.dtype))
    y = join_sequences(ys, like=x)
    return (y, join_states(finals, shape, like=x)) if return_final_states else y
