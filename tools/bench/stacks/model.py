"""A language model of blocks that take packs: an embedding, blocks with a norm before each, and the embedding again."""

# mypy: allow-untyped-calls

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from packproof.bench.stacks.documents import ForwardPass
from packproof.bench.stacks.shapes import Shape
from packproof.layers import Mamba2Block, MambaBlock

_BLOCKS = {"mamba": MambaBlock, "mamba2": Mamba2Block}
_FP32_PARAMETERS = ("A_log", "D", "dt_bias", "dt_proj.bias")  # read in fp32 by a block, beside tokens of 16 bits
_DEVIATION = 0.02  # of the embedding, as mamba-ssm starts it
_EPS = 1e-5


class Stack(nn.Module):
    """x + block(norm(x)) for each block, from an embedding to logits by the same weight.

    block: makes one block.
    boundaries: the argument of a block that holds the boundaries, and the field of ForwardPass of that name.
    """

    def __init__(self, shape: Shape, block: Callable[[], nn.Module], boundaries: str) -> None:
        super().__init__()
        self.boundaries = boundaries
        self.embedding = nn.Embedding(shape.vocabulary, shape.d_model)
        self.blocks = nn.ModuleList(block() for _ in range(shape.layers))
        self.norms = nn.ModuleList(nn.RMSNorm(shape.d_model, eps=_EPS) for _ in range(shape.layers + 1))

    def forward(self, forward_pass: ForwardPass) -> Tensor:
        """The loss of each prediction of a pass (n,), in fp32 or wider."""
        x: Tensor = self.embedding(forward_pass.input_ids)
        boundaries = {self.boundaries: getattr(forward_pass, self.boundaries)}
        for norm, block in zip(self.norms, self.blocks, strict=False):
            x = x + block(norm(x), **boundaries)
        hidden = self.norms[-1](x[0].index_select(0, forward_pass.rows))
        logits = functional.linear(hidden, self.embedding.weight)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return functional.cross_entropy(logits, forward_pass.targets, reduction="none")


def packproof_stack(shape: Shape, ops: Any, device: str, dtype: torch.dtype, seed: int) -> Stack:
    """A stack of packproof's blocks with random weights. They depend only on seed, device and shape."""
    with torch.device(device):
        torch.manual_seed(seed)
        stack = Stack(shape, lambda: _BLOCKS[shape.block](shape.d_model, ops=ops, **shape.sizes), "cu_seqlens")
    with torch.no_grad():
        stack.embedding.weight.normal_(0, _DEVIATION)
        for name, parameter in stack.named_parameters():
            if name.endswith("out_proj.weight"):
                parameter.div_(math.sqrt(shape.layers))  # the sum over layers starts as large as one
    return _cast_parameters(stack, dtype)


def mamba_ssm_stack(shape: Shape, device: str, dtype: torch.dtype, weights: Stack) -> Stack:
    """The same stack of mamba-ssm's Mamba2, with the weights of `weights`. Raises ImportError without mamba-ssm."""
    from mamba_ssm.modules.mamba2 import Mamba2  # noqa: PLC0415  (where it is installed)

    with torch.device(device):
        stack = Stack(shape, lambda: Mamba2(shape.d_model, **shape.sizes), "seq_idx")
    stack.load_state_dict(weights.state_dict(), strict=True)
    return _cast_parameters(stack, dtype)


def _cast_parameters(stack: Stack, dtype: torch.dtype) -> Stack:
    """Cast the parameters to `dtype`, from fp32 and once. The fp32 parameters stay fp32 or wider."""
    for name, parameter in stack.named_parameters():
        wide = name.endswith(_FP32_PARAMETERS)
        parameter.data = parameter.data.to(torch.promote_types(dtype, torch.float32) if wide else dtype)
    return stack
