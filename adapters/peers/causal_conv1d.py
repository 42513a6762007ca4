"""causal-conv1d: the CUDA kernel, channel-last with seq_idx, in which -1 is a padding token."""

from packproof.adapters import Batched, adapt, seq_idx

causal_conv1d = adapt(
    "causal_conv1d:causal_conv1d_fn",
    op="causal_conv1d",
    tokens=Batched(axis=-1),
    metadata={"seq_idx": seq_idx},
    without=("initial_states", "return_final_states"),  # those that go with seq_idx belong to a row of the batch
    domain="2 <= w <= 4; d % 8 == 0; contiguous",  # it takes slices of a multiple of 8 channels too
    float32=("weight", "bias"),
)
