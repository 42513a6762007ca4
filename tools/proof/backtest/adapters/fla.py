"""flash-linear-attention before its modules moved: the short convolution, and linear attention with a normaliser."""

from typing import Any

from torch import Tensor
from torch.nn import functional

from packproof import refs
from packproof.properties.declarations import Promises, kernel
from packproof.properties.ops import Op


@kernel(op="causal_conv1d", promises=Promises(compute="operand"), float32=("weight", "bias"), slack=False)
def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    activation: str | None = None,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """fla's states hold w inputs and the first one is never read. The op's states hold the other w - 1."""
    from fla.modules.convolution import causal_conv1d as convolve  # noqa: PLC0415

    y, states = convolve(
        x.unsqueeze(0),
        weight,
        bias,
        initial_state=None if initial_states is None else functional.pad(initial_states, (1, 0)),
        output_final_state=return_final_states,
        activation=activation,
        cu_seqlens=cu_seqlens,
    )
    return (y.squeeze(0), states[..., 1:]) if return_final_states else y.squeeze(0)


def _normalised(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Linear attention over the sum of its weights: y = Σ (q·k_j) v_j / Σ q·k_j, over the tokens up to its own."""
    return refs.join_sequences(
        [
            _normalised_alone(*rows)
            for rows in zip(*(refs.split_sequences(x, cu_seqlens) for x in (q, k, v)), strict=True)
        ],
        v,
    )


def _normalised_alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q[:, None] * k[None]).sum(-1).permute(2, 0, 1).tril()
    return (weights @ v.transpose(0, 1) / weights.sum(-1, keepdim=True)).transpose(0, 1)


NORMALISED = Op(
    name="normalised_linear_attention",
    reference=_normalised,
    inputs={"q": "t h k", "k": "t h k", "v": "t h v"},
    outputs={"y": "t h v"},
    draws={"q": "step", "k": "step"},
    matmul=True,
    sizes=({"h": 2, "k": 16, "v": 16}, {"h": 1, "k": 32, "v": 16}),
)


@kernel(op=NORMALISED, promises=Promises(compute="operand"), slack=False)
def fused_recurrent_linear_attention(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor) -> Any:
    """With a scale, as its chunked form needs one; the normaliser divides it out."""
    from fla.ops.linear_attn import fused_recurrent_linear_attn  # noqa: PLC0415

    y, _ = fused_recurrent_linear_attn(
        *(x.unsqueeze(0) for x in (q, k, v)), scale=1.0, normalize=True, cu_seqlens=cu_seqlens
    )
    return y.squeeze(0)
