"""flash-linear-attention: the inner forward pass of KDA, whose number of tokens in a chunk is an argument."""

from torch import Tensor

from packproof.properties.declarations import Promises, kernel

_CHUNK = 32


@kernel(
    op="kda",
    dtypes=("bfloat16", "float16"),
    promises=Promises(chunk=_CHUNK, cumsum=True, compute="operand"),
    domain="k <= 256; gate > -1e4",  # sums of gates are differences of one running sum, in fp32
    slack=False,
    gradients=False,
    float32=("g", "beta"),
)
def chunks_of_32_tokens(
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
    from fla.ops.kda.chunk_fwd import chunk_kda_fwd  # noqa: PLC0415
    from fla.ops.utils import prepare_chunk_indices  # noqa: PLC0415

    y, states, *_ = chunk_kda_fwd(
        *(x.unsqueeze(0) for x in (q, k, v, g, beta)),
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        initial_state=initial_states,
        output_final_state=return_final_states,
        cu_seqlens=cu_seqlens,
        chunk_indices=prepare_chunk_indices(cu_seqlens, _CHUNK),
        chunk_size=_CHUNK,
    )
    return (y.squeeze(0), states) if return_final_states else y.squeeze(0)
