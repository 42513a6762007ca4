"""Sizes of small configs by field name, and exceptions by model type."""

from collections.abc import Mapping
from typing import Any

# Lists with the kind of each layer.
KINDS = (
    *("layer_types", "mlp_layer_types", "layers_block_type", "block_types", "attention_layers", "attn_layers"),
    *("indexer_types", "no_rope_layers", "mtp_layer_types"),
)

_BY_VALUE: Mapping[Any, tuple[str, ...]] = {
    64: (
        *("vocab_size", "unpadded_vocab_size", "hidden_size", "d_model", "n_embd", "emb_dim", "embedding_size"),
        *("embedding_dim", "word_embed_proj_dim", "lru_width", "input_embedding_size", "output_embedding_size"),
        *("attention_hidden_size", "router_hidden_size", "dim_model_base", "vocab_size_per_layer_input"),
    ),
    96: (
        *("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner", "dff", "dim_ff", "d_inner"),
        *("ffn_hidden_size", "intermediate_size_mlp", "dense_intermediate_size", "prefix_dense_intermediate_size"),
        *("feed_forward_size", "expert_ffn_hidden_size"),
    ),
    32: (
        *("moe_intermediate_size", "shared_expert_intermediate_size", "shared_experts_intermediate_size"),
        *("shared_intermediate_size", "moe_shared_expert_intermediate_size", "q_lora_rank", "kv_lora_rank"),
        *("o_lora_rank", "ple_embed_dim", "hc_lowrank", "hidden_size_per_layer_input"),
    ),
    4: (
        *("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "attention_heads"),
        *("decoder_attention_heads", "num_decoder_attention_heads", "num_encoder_attention_heads"),
        *("swa_num_attention_heads", "linear_num_value_heads", "linear_num_heads", "index_n_heads"),
        *("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "zero_expert_num"),
    ),
    2: (
        *("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads", "linear_num_key_heads"),
        *("num_query_groups", "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"),
        *("n_group", "topk_group", "num_expert_group", "encoder_layers", "num_encoder_layers", "top_k_experts"),
    ),
    1: (
        *("n_shared_experts", "moe_num_shared_experts", "num_shared_experts", "first_k_dense_replace"),
        *("num_dense_layers", "num_mem_blocks"),
    ),
    16: (
        *("head_dim", "swa_head_dim", "kv_channels", "qk_nope_head_dim", "v_head_dim", "qk_rope_head_dim", "d_head"),
        *("linear_head_dim", "linear_key_head_dim", "linear_value_head_dim", "index_head_dim", "dim_head"),
        *("attention_head_size", "attention_head_dim", "d_rel", "mamba_d_state", "state_size", "ssm_state_size"),
        *("time_step_rank", "mamba_dt_rank", "rotary_dim"),
    ),
    8: (
        *("sliding_window", "sliding_window_size", "attention_window_size", "local_attention", "window_size"),
        *("chunk_size", "mamba_chunk_size", "attention_chunk_size", "block_size", "local_attn_chunk_length"),
        *("lsh_attn_chunk_length", "index_topk", "index_block_size", "keep_window_size"),
    ),
    512: (
        *("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_target_positions"),
        *("model_max_length", "context_length", "rel_extent"),
    ),
}
# Fields set even where the default config has None: some models compute with them.
EVEN_IF_NONE = ("head_dim", "num_key_value_heads", "num_experts_per_tok")
SIZES: Mapping[str, Any] = {
    **{name: value for value, names in _BY_VALUE.items() for name in names},
    **{"layer_group_size": 2, "num_kv_shared_layers": 0, "encoder_hash_byte_group_vocab": 64},
    **{"pad_token_id": 63, "bos_token_id": 1, "eos_token_id": 2, "qk_head_dim": 32, "is_decoder": True},
}

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_expand": 2}

# By model type: fields without a rule by name, since they depend on each other or hide a kind of layer.
SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": dict.fromkeys(("sliding_attention", "full_attention"), _ROPE),
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
        "rope_parameters": _ROPE,
    },
    "dots1": {
        **{"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "dots3_note_text": {"per_layer_config": {}, "head_dim": 32},
    "gemma4_text": {"per_layer_config": {}},
    "gemma4_unified_text": {"per_layer_config": {}},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["linear_attention", "full_attention"]},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 128},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 4, "expert_layer_period": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2},
    "qwen4_exp_text": {
        **{"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8},
        "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": {"num_hidden_layers": 2, "block_types": ["recurrent", "attention"]},
    "reformer": {"axial_pos_embds": False},
    "xlstm": {"qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        **{"attention_hidden_size": 128, "attention_head_dim": 32, "num_hidden_layers": 4},
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
    },
    "zamba2": {
        **{"attention_hidden_size": 128, "attention_head_dim": 32, "mamba_headdim": 16, "num_query_groups": 4},
        **{"num_key_value_heads": 4, "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    },
    "zaya": {"num_experts_per_tok": 1},
}
