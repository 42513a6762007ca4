"""flash-linear-attention's KDA at bb1f9b9c: values of fewer than 16 columns have no backward pass.

The forward pass takes them. In the backward pass a block has as many columns as the values, and Triton multiplies no
matrices of fewer than 16: the kernel does not compile. It needs a GPU.
"""

import sys

import torch
from fla.ops.kda import chunk_kda


def compiles(width: int) -> bool:
    shapes = {"q": (1, 16), "k": (1, 16), "v": (1, width), "g": (1, 16), "beta": (1,)}
    tensors = {name: -torch.rand(1, 64, *shape, device="cuda").bfloat16() for name, shape in shapes.items()}
    tensors |= {"g": tensors["g"].float(), "beta": -tensors["beta"].float()}
    for tensor in tensors.values():
        tensor.requires_grad_()
    y = chunk_kda(**tensors, cu_seqlens=torch.tensor([0, 64], device="cuda"))[0]
    try:
        torch.autograd.grad(y.sum(), list(tensors.values()))
    except Exception as error:
        print(f"values of {width} columns: {type(error).__name__}: {str(error).strip().splitlines()[-1].strip()}")
        return False
    print(f"values of {width} columns: the gradients are there")
    return True


sys.exit((compiles(16), compiles(8)) == (True, False))
