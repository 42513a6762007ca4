"""causal-conv1d: the CUDA kernel, channel-last, with -1 in seq_idx for padding, and its update for one token."""

from packproof.adapters import Batched, adapt, seq_idx

causal_conv1d = adapt(
    "causal_conv1d:causal_conv1d_fn",
    op="causal_conv1d",
    tokens=Batched(axis=-1),
    metadata={"seq_idx": seq_idx},
    without=("initial_states", "return_final_states"),  # with seq_idx it takes states per row of the batch
    domain="2 <= w <= 4; d % 8 == 0; contiguous",  # it also takes slices of 8 n channels
    float32=("weight", "bias"),
)

# one token for each request; slots are int32, below 0 for padding
causal_conv1d_update = adapt(
    "causal_conv1d:causal_conv1d_update",
    op="causal_conv1d_update",
    metadata={},
    names={"states": "conv_state", "state_indices": "conv_state_indices"},
    converted={"state_indices": lambda slots: slots.int()},
    in_place=("states",),
    domain="length == 1; slack == 0; 2 <= w <= 4",
    float32=("weight", "bias"),
)
