"""flash-linear-attention's causal convolution at b1d76699: gradients by way of initial and final states.

Parts of the gradient of initial states are placed by the batch, which is 1, and not by the number of sequences: they
land on those of other sequences. Without final states the gradient is 0. The final state of one token has the token
at its end, and its gradient is read at its begin. All three are compared with a plain convolution in fp64.
"""

import os
import sys
from contextlib import nullcontext

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor
from triton.runtime.autotuner import Autotuner

Autotuner.run = lambda self, *a, **options: self.fn.run(*a, **options, **self.configs[0].kwargs)  # tuning needs a GPU
torch.cpu.device = torch.cuda.device = lambda _: nullcontext()
from fla.modules import convolution

convolution.get_multiprocessor_count = lambda _: 132  # an H100's: blocks of a short pack have one row
WIDTH = 4


def plain(x: Tensor, weight: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """One sequence: x (t, d), weight (d, w), states (d, w), of which the first column is never read."""
    tokens = torch.cat([states[:, 1:], x.T], 1)  # [d, w - 1 + t]
    return (tokens.unfold(1, WIDTH, 1) * weight[:, None]).sum(-1).T, tokens[:, -WIDTH:]


def largest_difference(name: str, lengths: tuple[int, ...], *, of_states: bool) -> float:
    """The gradient of `name`, for the incoming gradient of y, and of final states if these are returned."""
    torch.manual_seed(0)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    tensors = {"x": torch.randn(1, sum(lengths), 2), "weight": torch.randn(2, WIDTH)}
    tensors["initial_state"] = torch.randn(len(lengths), 2, WIDTH)
    x, weight, states = (t.requires_grad_() for t in tensors.values())
    y, final = convolution.causal_conv1d(**tensors, output_final_state=of_states, cu_seqlens=offsets)
    dy, dfinal = torch.randn(y.shape), torch.randn(states.shape) * (torch.arange(WIDTH) > 0)
    outputs, incoming = ((y, final), (dy, dfinal)) if of_states else ((y,), (dy,))
    (computed,) = torch.autograd.grad(outputs, tensors[name], incoming)
    pieces = zip(x[0].double().split(lengths), states.double(), strict=True)
    ys, finals = zip(*(plain(piece, weight.double(), state) for piece, state in pieces), strict=True)
    outputs = (torch.cat(ys)[None], torch.stack(finals)) if of_states else (torch.cat(ys)[None],)
    (expected,) = torch.autograd.grad(outputs, tensors[name], [d.double() for d in incoming])
    return float((computed - expected).abs().max())


one = largest_difference("initial_state", (5,), of_states=True)
many = largest_difference("initial_state", (5, 7), of_states=True)
unasked = largest_difference("initial_state", (5,), of_states=False)
long = largest_difference("x", (5,), of_states=True)
short = largest_difference("x", (1,), of_states=True)
print(f"gradient of initial states: {one:.1g} off for one sequence, {many:.3g} off for two")
print(f"gradient of initial states, no final ones returned: {unasked:.3g} off")
print(f"gradient of x: {long:.1g} off for 5 tokens, {short:.3g} off for one token")
sys.exit(max(many, unasked, short) > 1e-3)
