"""flash-linear-attention's ShortConvolution at 1b2ce7ed: as many states as the last number, all of the pack's end.

Their number is seq_idx[0, -1], one fewer than there are sequences, and each state holds the last tokens of the pack. A
pack of one sequence has no states.
"""

import torch
from fla.modules import convolution

convolution.causal_conv1d_fn = lambda x, **_: x  # the package causal-conv1d: only states are looked at
layer = convolution.ShortConvolution(2, 3, use_fast_conv1d=True)
x = torch.arange(12.0).view(1, 6, 2)
for numbers in ([0] * 6, [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2]):
    states = layer(x, output_final_state=True, seq_idx=torch.tensor([numbers]))[1]
    print(f"seq_idx {numbers}: {len(states)} of {numbers[-1] + 1} states; of channel 0:", states[:, 0].tolist())
