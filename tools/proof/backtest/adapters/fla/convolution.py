"""flash-linear-attention before its modules moved: the short convolution."""

from torch import Tensor
from torch.nn import functional

from packproof.properties.declarations import Promises, kernel


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
