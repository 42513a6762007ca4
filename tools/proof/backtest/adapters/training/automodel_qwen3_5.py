"""NeMo Automodel: the mixer of Qwen3.5, with the convolution and the delta rule of its kernels in plain torch."""

from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from packproof import refs
from packproof.models import Convention, Pack

_WIDTH = 64


def qwen3_5() -> nn.Module:
    module: Any = import_module("nemo_automodel.components.models.qwen3_5_moe.cp_linear_attn")
    from transformers.models.qwen3_5_moe import (  # noqa: PLC0415
        configuration_qwen3_5_moe,
        modeling_qwen3_5_moe,
    )

    config = configuration_qwen3_5_moe.Qwen3_5MoeTextConfig(
        hidden_size=_WIDTH,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_conv_kernel_dim=4,
    )
    layer: Any = module.CPAwareGatedDeltaNet(config, 0)
    layer.causal_conv1d_fn = _convolve
    layer.chunk_gated_delta_rule = partial(_delta_rule, modeling_qwen3_5_moe.torch_chunk_gated_delta_rule)
    assert isinstance(layer, nn.Module)
    return layer


def _convolve(*, x: Tensor, weight: Tensor, bias: Tensor | None, activation: Any, seq_idx: Tensor | None) -> Tensor:
    """causal_conv1d, which takes (rows, channels, tokens) and the numbers of sequences."""
    lengths = [x.shape[-1]] if seq_idx is None else torch.unique_consecutive(seq_idx[0], return_counts=True)[1].tolist()
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return refs.causal_conv1d(x[0].mT, weight, bias, cu_seqlens=offsets, activation=activation).mT[None]


def _delta_rule(
    rule: Any, *qkv: Tensor, g: Tensor, beta: Tensor, cu_seqlens: Tensor | None = None, **options: Any
) -> tuple[Tensor, None]:
    offsets = [0, qkv[0].shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    pieces = [slice(*ends) for ends in pairwise(offsets)]
    outputs = [rule(*(x[:, p] for x in qkv), g=g[:, p], beta=beta[:, p], **options)[0] for p in pieces]
    return torch.cat(outputs, 1), None


def _numbers(pack: Pack) -> dict[str, Any]:
    return {"attention_mask": pack.document[None] + 1}


NUMBERS = Convention("numbered_mask", "an attention mask with the number of each token's document", _numbers)
