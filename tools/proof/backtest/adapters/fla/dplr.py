"""flash-linear-attention: the generalized delta rule with low-rank transitions, under RWKV-7, called as KDA.

Its transition is diag(exp(g)) S + b (aᵀ S), with the state S before the token. KDA decays first and takes out what the
decayed state holds under the key: a = exp(g) k and b = -β k, and the new key is β k.
"""

from torch import Tensor

from packproof.properties.declarations import Promises, kernel


@kernel(
    op="kda",
    promises=Promises(chunk=64, cumsum=True, compute="operand"),
    domain="gate > -1e4",  # decays are differences of a running sum
    slack=False,
)
def chunked_transitions(
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
    from fla.ops.generalized_delta_rule import chunk_dplr_delta_rule  # noqa: PLC0415

    new_key = beta[..., None] * k
    tokens = (q, new_key, v, g.exp() * k, -new_key, g)
    y, states = chunk_dplr_delta_rule(
        *(x.unsqueeze(0) for x in tokens),
        scale=scale,
        initial_state=initial_states,
        output_final_state=return_final_states,
        cu_seqlens=cu_seqlens,
        head_first=False,
    )
    return (y.squeeze(0), states) if return_final_states else y.squeeze(0)
