"""attention-gym: its recurrent KDA, whose decays are logarithms of base 2."""

import math

from torch import Tensor

from packproof.properties.declarations import kernel


@kernel(op="kda", slack=False)
def naive_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_states: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    scale: float | None = None,
    return_final_states: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    from attn_gym.linear.kda.naive import naive_recurrent_kda  # noqa: PLC0415

    tokens = (x.unsqueeze(0) for x in (q, k, v, g / math.log(2), beta))
    y, states = naive_recurrent_kda(*tokens, scale, initial_states, return_final_states, cu_seqlens)
    return (y.squeeze(0), states) if return_final_states else y.squeeze(0)


@kernel(op="kda")
def naive_kda_with_slack(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Rows past the last sequence are passed, too."""
    y = naive_kda(q, k, v, g, beta, cu_seqlens=cu_seqlens)
    assert isinstance(y, Tensor)
    return y
