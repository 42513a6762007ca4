"""The parameters of mamba-ssm's blocks, by name and shape, as its state dicts have them (version 2.2)."""

import math

import torch
from torch import Tensor

Shapes = dict[str, tuple[int, ...]]


def mamba(d_model: int, d_state: int = 16, d_conv: int = 4, expand: int = 2, dt_rank: int | None = None) -> Shapes:
    d, rank = expand * d_model, math.ceil(d_model / 16) if dt_rank is None else dt_rank
    return {
        "A_log": (d, d_state),
        "D": (d,),
        "in_proj.weight": (2 * d, d_model),
        "conv1d.weight": (d, 1, d_conv),
        "conv1d.bias": (d,),
        "x_proj.weight": (rank + 2 * d_state, d),
        "dt_proj.weight": (d, rank),
        "dt_proj.bias": (d,),
        "out_proj.weight": (d_model, d),
    }


def mamba2(
    d_model: int, d_state: int = 128, d_conv: int = 4, expand: int = 2, headdim: int = 64, ngroups: int = 1
) -> Shapes:
    d, shared = expand * d_model, 2 * ngroups * d_state
    heads = d // headdim
    return {
        "dt_bias": (heads,),
        "A_log": (heads,),
        "D": (heads,),
        "in_proj.weight": (2 * d + shared + heads, d_model),
        "conv1d.weight": (d + shared, 1, d_conv),
        "conv1d.bias": (d + shared,),
        "norm.weight": (d,),
        "out_proj.weight": (d_model, d),
    }


def attention(
    embed_dim: int, num_heads: int, num_heads_kv: int | None = None, head_dim: int | None = None, d_conv: int = 0
) -> Shapes:
    """Of MHA, without biases of the projections, as the models on the hub are configured."""
    d = embed_dim // num_heads if head_dim is None else head_dim
    qkv = d * (num_heads + 2 * (num_heads if num_heads_kv is None else num_heads_kv))
    convolution = {"conv1d.weight": (qkv, 1, d_conv), "conv1d.bias": (qkv,)} if d_conv else {}
    return {"in_proj.weight": (qkv, embed_dim), **convolution, "out_proj.weight": (embed_dim, d * num_heads)}


def state_dict(shapes: Shapes, seed: int = 0) -> dict[str, Tensor]:
    """Random values, each of a size at which it changes the output."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) / math.sqrt(math.prod(shape[1:]) or 1)
        for name, shape in shapes.items()
    }
