"""flash-linear-attention's layer ShortConvolution, at the commits before it had a convolution of its own in Triton.

What the package causal-conv1d computes for it is computed here by torch; the states are its own.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from packproof import refs
from packproof.properties.declarations import kernel


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Any = None, seq_idx: Tensor | None = None
) -> Tensor:
    """The package's function for a row (1, d, t) of sequences, numbered by seq_idx (1, t)."""
    assert seq_idx is not None
    ids = seq_idx[0]
    starts = torch.nonzero(functional.pad(ids.diff(), (1, 0), value=1)).flatten()
    offsets = torch.cat([starts, starts.new_tensor([len(ids)])]).int()
    return refs.causal_conv1d(x[0].mT, weight, bias, cu_seqlens=offsets, activation=activation).mT.unsqueeze(0)


def _step(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """The package's function for one more token of each sequence: x (s, d), and a state (s, d, w) that is updated."""
    conv_state.copy_(torch.cat([conv_state[..., 1:], x[..., None]], -1))
    y = (conv_state * weight).sum(-1) if bias is None else (conv_state * weight).sum(-1) + bias
    return functional.silu(y) if activation else y


def _layer(weight: Tensor, bias: Tensor | None, activation: str | None, *, fast: bool) -> nn.Module:
    """The layer with these parameters, so that their gradients arrive."""
    from fla.modules import convolution  # noqa: PLC0415

    convolution.causal_conv1d_fn, convolution.causal_conv1d_update = _convolve, _step
    d, w = weight.shape
    layer: nn.Module = convolution.ShortConvolution(
        d, w, bias=bias is not None, activation=activation, use_fast_conv1d=fast
    )
    for name, value in {"weight": weight[:, None], "bias": bias}.items():
        if value is not None:
            delattr(layer, name)
            setattr(layer, name, value)
    return layer


def _call(layer: Any, x: Tensor, return_final_states: bool, **boundaries: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    """The layer's states hold w inputs, the op's the last w - 1 of them."""
    y, states = layer(x.unsqueeze(0), output_final_state=return_final_states, **boundaries)
    return (y.squeeze(0), states[..., 1:]) if return_final_states else y.squeeze(0)


@kernel(op="causal_conv1d", slack=False)
def by_offsets(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    activation: str | None = None,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    layer = _layer(weight, bias, activation, fast=True)
    return _call(layer, x, return_final_states, cu_seqlens=cu_seqlens)


@kernel(op="causal_conv1d", slack=False)
def by_ids(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    activation: str | None = None,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    ids = refs.seq_idx_from_cu_seqlens(cu_seqlens, len(x)).int().unsqueeze(0)
    return _call(_layer(weight, bias, activation, fast=True), x, return_final_states, seq_idx=ids)


@kernel(op="causal_conv1d", slack=False)
def in_torch(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor) -> Any:
    """Its path without the package. Its activations need a GPU."""
    return _call(_layer(weight, bias, None, fast=False), x, False, cu_seqlens=cu_seqlens)
