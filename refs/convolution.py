"""Causal depthwise convolution of Mamba (Gu & Dao 2023, fig. 3): y[t] = act(bias + Σ_j weight[:, j] x[t-(w-1)+j])."""

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn import functional

from packproof.base.arguments import bind, check_floats, check_option, check_options
from packproof.base.errors import ArgumentError, checked_call, typed_as
from packproof.base.signatures import CAUSAL_CONV1D
from packproof.refs.recurrence import (
    join_sequences,
    join_states,
    over_time,
    split_sequences,
    split_states,
    to_compute_dtype,
)

if TYPE_CHECKING:
    from packproof.refs import overloads

Activation = Literal["silu"] | None


@checked_call
def causal_conv1d_step(
    state: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Activation = None
) -> tuple[Tensor, Tensor]:
    """Advance one token: state is (d, w-1), the inputs before this one, oldest first; x (d,), weight (d, w), bias (d,).

    Returns the new state and y of shape (d,). Leading batch axes of state and x are kept. Raises ArgumentError for
    inconsistent shapes and for an unknown activation.

    >>> import torch
    >>> from packproof.refs import causal_conv1d_step
    >>> state, y = causal_conv1d_step(torch.tensor([[1.0, 2.0]]), torch.tensor([3.0]), torch.ones(1, 3))
    >>> state, y
    (tensor([[2., 3.]]), tensor([6.]))
    """
    check_option("causal_conv1d_step", "activation", activation, CAUSAL_CONV1D.options["activation"])
    tensors = {"state": state, "x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
    for name, tensor in tensors.items():
        check_floats("causal_conv1d_step", name, tensor)
    fits = weight.ndim == 2 and x.shape[-1:] == weight.shape[:1] and (bias is None or bias.shape == weight.shape[:1])
    if not fits or state.shape != (*x.shape, weight.shape[-1] - 1):
        actual = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        expected = "state (d, w-1), x (d,), weight (d, w)" + ("" if bias is None else ", bias (d,)")
        raise ArgumentError(f"causal_conv1d_step: {actual} came but {expected} was expected")
    return _step(state, x, weight, bias, activation)


def _step(
    state: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation
) -> tuple[Tensor, Tensor]:
    window = torch.cat([state, x[..., None]], dim=-1)
    y = (weight * window).sum(-1)
    if bias is not None:
        y = y + bias
    return window[..., 1:], functional.silu(y) if activation else y


@typed_as(lambda: overloads.causal_conv1d)
@checked_call
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

    All tensors share one dtype: fp64, fp32, bf16 or fp16 (the last two compute in fp32). Beside a bf16 or fp16 x, any
    other tensor may be fp32.

    x: (t, d).
    weight: (d, w). The last tap multiplies the token itself.
    bias: (d,).
    cu_seqlens: int32 or int64 (s + 1,).
    initial_states: (s, d, w-1), the inputs before each sequence, oldest first; zeros if left out.
    activation: None or "silu".

    Returns y (t, d), zero in slack, and with return_final_states also the last w-1 inputs of each sequence (s, d, w-1);
    for a shorter sequence they begin with part of its initial state. Both are in x's dtype. A gradient has the dtype of
    its input. Raises ArgumentError and LayoutError.

    >>> import torch
    >>> from packproof.refs import causal_conv1d
    >>> x, weight = torch.arange(1.0, 6)[:, None], torch.ones(1, 2)  # a token and the one before it
    >>> causal_conv1d(x, weight, cu_seqlens=torch.tensor([0, 2, 5]))[:, 0]  # 3 has none before it
    tensor([1., 3., 3., 7., 9.])
    >>> causal_conv1d(x, weight, cu_seqlens=torch.tensor([0, 2, 5]), return_final_states=True)[1].flatten()
    tensor([2., 5.])
    """
    sizes = bind(CAUSAL_CONV1D, cu_seqlens, x=x, weight=weight, bias=bias, initial_states=initial_states, values=True)
    check_options(CAUSAL_CONV1D, activation=activation, return_final_states=return_final_states)
    taps, offset = to_compute_dtype(weight), None if bias is None else to_compute_dtype(bias)
    shape = (sizes["d"], sizes["w"] - 1)

    def step(state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        return _step(state, token, taps, offset, activation)

    ys, finals = [], []
    for tokens, state in zip(
        split_sequences(x, cu_seqlens), split_states(initial_states, sizes["s"], shape, x), strict=True
    ):
        y, final = over_time(step, to_compute_dtype(state), to_compute_dtype(tokens))
        ys.append(y)
        finals.append(final.to(x.dtype))
    y = join_sequences(ys, like=x)
    return (y, join_states(finals, shape, like=x)) if return_final_states else y
