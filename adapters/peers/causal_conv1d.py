"""causal-conv1d: the CUDA kernel, channel-last, in whose seq_idx -1 is a padding token, and its step of a server."""

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

# one token for each request, whose slots are int32, below 0 for one that only pads
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
