"""flash-linear-attention's ShortConvolution at 62760a7b: a pack of one token, gradients of states, and plain PyTorch.

A pack of one token gives causal_conv1d_update a vector, where the package documents (batch, dim). Final states of a
pack have no gradient. Without the package cu_seqlens is refused, whatever they hold.
"""

from contextlib import nullcontext

import torch
from fla.modules import convolution


class Launched:
    """In place of a Triton kernel: what it writes is nothing to autograd, either."""

    def __getitem__(self, grid):
        return lambda *_, **__: None


def update(x, **_):
    print("one token: causal_conv1d_update gets x of shape", tuple(x.shape), "expected (1, 2)")
    return x


torch.cpu.device = torch.cuda.device = lambda _: nullcontext()  # guards of the package, without a GPU
convolution.causal_conv1d_varlen_states_fwd_kernel = Launched()
convolution.causal_conv1d_fn, convolution.causal_conv1d_update = lambda x, **_: x, update
layer = convolution.ShortConvolution(2, 3, use_fast_conv1d=True)
layer(torch.ones(1, 1, 2), output_final_state=True, cu_seqlens=torch.tensor([0, 1]))
x = torch.ones(1, 7, 2, requires_grad=True)
states = layer(x, output_final_state=True, cu_seqlens=torch.tensor([0, 3, 7]))[1]
print("final states have a gradient:", states.requires_grad)
layer.use_fast_conv1d = False
try:
    layer(x, cu_seqlens=torch.tensor([0, 3, 7]))
except ValueError as error:
    print("in PyTorch:", error)
