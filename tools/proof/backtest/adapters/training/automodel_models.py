"""NeMo Automodel: small models of random weights, which take tokens along one axis or a mask of pairs of tokens."""

from importlib import import_module
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from packproof.models import Convention, Pack

_TOKENS = 97


def _uncompiled(function: Any = None, **_: Any) -> Any:
    """In place of torch.compile, whose functions keep nothing for a second gradient."""
    return _uncompiled if function is None else function


def _import(name: str) -> Any:
    with mock.patch.object(torch, "compile", _uncompiled):
        return import_module(f"nemo_automodel.components.models.{name}")


def _backend() -> Any:
    """Plain torch."""
    make = _import("common.utils").BackendConfig
    return make(attn="sdpa", linear="torch", rms_norm="torch", rope_fusion=False, experts="torch", dispatcher="torch")


def _with_weights(model: nn.Module) -> nn.Module:
    """The parameters are allocated, and have no values yet."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model


class _TokensAlongOneAxis(nn.Module):
    """A packed batch arrives without an axis of rows."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = _with_weights(model.float())

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, **packed: Any) -> Tensor:
        y: Tensor
        if not packed:
            y = self.model(input_ids, position_ids=position_ids)
        else:
            y = self.model(input_ids[0], position_ids=position_ids, qkv_format="thd", **packed)
        return y if y.dim() == 3 else y[None]


def _deepseek_v4(compress_ratios: list[int]) -> nn.Module:
    module: Any = _import("deepseek_v4.model")
    config = module.DeepseekV4Config(
        vocab_size=_TOKENS,
        hidden_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=len(compress_ratios),
        num_attention_heads=4,
        head_dim=16,
        qk_rope_head_dim=8,
        q_lora_rank=16,
        o_lora_rank=8,
        o_groups=2,
        n_routed_experts=4,
        num_experts_per_tok=2,
        compress_ratios=compress_ratios,
        sliding_window=64,
        num_hash_layers=0,
        index_head_dim=16,
        index_n_heads=2,
        index_topk=4,
        num_nextn_predict_layers=0,
        dtype="float32",
    )
    return _TokensAlongOneAxis(module.DeepseekV4Model(config, _backend()))


def deepseek_v4() -> nn.Module:
    return _deepseek_v4([0, 0])


def compressing_deepseek_v4() -> nn.Module:
    """A layer with keys and values of four tokens each."""
    return _deepseek_v4([0, 4])


def _lengths(pack: Pack) -> dict[str, Any]:
    lengths = torch.tensor([pack.lengths])
    return {"position_ids": pack.position, "seq_lens": lengths, "seq_lens_padded": lengths.clone()}


def _offsets(pack: Pack) -> dict[str, Any]:
    return {"position_ids": pack.position, "cu_seqlens": pack.offsets.int()}


LENGTHS = Convention("seq_lens", "the lengths of the documents of a row", _lengths)
OFFSETS = Convention("cu_seqlens", "the offsets of the documents", _offsets)


class _WithPairs(nn.Module):
    """A batch of rows with a mask of pairs of tokens."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = _with_weights(model.float())

    def forward(self, input_ids: Tensor, **packed: Any) -> Any:
        return self.model(input_ids, **packed)


def gemma4() -> nn.Module:
    module: Any = _import("gemma4_moe.model")
    config = module.Gemma4TextConfig(
        vocab_size=_TOKENS,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        global_head_dim=16,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=64,
        enable_moe_block=True,
        num_experts=4,
        top_k_experts=2,
        moe_intermediate_size=16,
        hidden_size_per_layer_input=0,
        num_kv_shared_layers=0,
        attn_implementation="eager",
    )
    return _WithPairs(module.Gemma4MoETextModelBackend(config, _backend()))


def minimax_m3() -> nn.Module:
    module: Any = _import("minimax_m3_vl.model")
    config = module.MiniMaxM3VLTextConfig(
        vocab_size=_TOKENS,
        hidden_size=32,
        intermediate_size=16,
        dense_intermediate_size=16,
        shared_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rotary_dim=4,
        num_local_experts=4,
        num_experts_per_tok=2,
        moe_layer_freq=[1, 1],
        sparse_attention_config=None,
        num_mtp_modules=0,
    )
    return _WithPairs(module.MiniMaxM3TextModel(config, _backend()))


def _pairs(pack: Pack) -> dict[str, Any]:
    """Each token is with those of its document up to itself."""
    allowed = (pack.document[:, None] == pack.document) & torch.ones(pack.tokens, pack.tokens).tril().bool()
    return {"position_ids": pack.position[None], "attention_mask": allowed[None, None]}


def _pairs_and_padding(pack: Pack) -> dict[str, Any]:
    return {**_pairs(pack), "padding_mask": torch.zeros(1, pack.tokens, dtype=torch.bool)}


PAIRS = Convention("attention_mask", "a boolean mask of pairs of tokens, (1, 1, t, t)", _pairs)
PAIRS_AND_PADDING = Convention(
    "both_masks", "a boolean mask of pairs of tokens, and one of padding", _pairs_and_padding
)
