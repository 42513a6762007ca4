"""causal-conv1d: the CUDA kernel, channel-last with seq_idx, in which -1 is a padding token."""

from packproof.adapters import Batched, adapt, seq_idx

causal_conv1d = adapt(
    "causal_conv1d:causal_conv1d_fn",
    op="causal_conv1d",
    tokens=Batched(axis=-1),
    metadata={"seq_idx": seq_idx},
    without=("initial_states", "return_final_states"),  # not together with seq_idx
    refuses=(
        "only supports width between 2 and 4",
        "only supports channel dimension divisible by 8",
        "to be multiples of 8",
        "supported for channel last layout",
    ),
)
