"""Sizes of small towers by field name, ids of special tokens, and exceptions by model type."""

from collections.abc import Mapping
from typing import Any

from packproof.models.board.exceptions import SIZES

IMAGE_ID, START_ID, END_ID = 60, 58, 59  # of an image's tokens, of the one before them and of the one after
FIRST_SPECIAL_ID = 55  # the ids of text lie below
_SPECIAL_IDS: Mapping[str, int] = {
    **dict.fromkeys(("image_token_id", "image_token_index"), IMAGE_ID),
    **dict.fromkeys(("video_token_id", "video_token_index"), IMAGE_ID + 1),
    **dict.fromkeys(("audio_token_id", "audio_token_index"), IMAGE_ID + 2),
    **dict.fromkeys(("vision_start_token_id", "image_start_token_id", "im_start_id", "boi_token_index"), START_ID),
    **dict.fromkeys(("vision_end_token_id", "image_end_token_id", "im_end_id", "eoi_token_index"), END_ID),
    **dict.fromkeys(("video_start_token_id", "im_newline_id"), 57),
    **dict.fromkeys(("video_end_token_id",), 56),
}

# Fields of the whole config, of that of the text, and of that of any other modality.
OUTER_SIZES: Mapping[str, Any] = {
    **_SPECIAL_IDS,
    **dict.fromkeys(("projection_hidden_size", "projector_hidden_size", "out_hidden_size", "projection_dim"), 64),
    **{
        "alignment_intermediate_size": 128,
        "merged_hidden_size": 256,
        "vision_feature_layer": -1,
        "image_seq_length": 4,
        "mm_tokens_per_image": 4,
    },
}
TEXT_SIZES: Mapping[str, Any] = {**SIZES, "moe_hidden_size": 64}
TOWER_SIZES: Mapping[str, Any] = {
    **{name: size for name, size in SIZES.items() if not name.endswith("token_id") and name != "is_decoder"},
    **dict.fromkeys(("depth", "num_hidden_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_heads", "encoder_attention_heads", "num_key_value_heads"), 4),
    **dict.fromkeys(("embed_dim", "out_hidden_size", "text_hidden_size", "output_dim", "projection_dim"), 64),
    **dict.fromkeys(("adapter_in_dim", "adapter_out_dim", "projection_hidden_dim", "downsample_hidden_size"), 64),
    **dict.fromkeys(("position_embedding_size", "mm_embed_dim", "mm_posemb_size", "output_proj_dims"), 64),
    **dict.fromkeys(("pos_emb_height", "pos_emb_width", "posemb_grid_size"), 8),
    **{"patch_size": 4, "image_size": 16, "window_size": 16, "num_position_embeddings": 64, "num_patches": 64},
    **{"fullatt_block_indexes": [1], "deepstack_visual_indexes": [0], "max_position_embeddings": 64},
    **{"pooling_kernel_size": 2, "max_image_size": 128, "img_max_token_num": 64, "max_vit_seq_len": 64},
}

PREFIXED = ("paligemma",)  # token types of 0 are a prefix, in which all see each other
MARKED = ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")  # they find an image by the id before it
_OF_THREE_AXES = (
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen4_exp", *MARKED),
    *("glm4v", "glm4v_moe", "glm46v", "glm_ocr", "paddleocr_vl", "cosmos3_edge", "cosmos3_omni", "hunyuan_vl"),
)
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_AXES: Mapping[str, Any] = {
    **_ROPE,
    "partial_rotary_factor": 1.0,
    "mrope_section": [2, 3, 3],
}  # 8 frequencies: a head has 16 channels
_MROPE: Mapping[str, Mapping[str, Any]] = {
    "": {"vision_start_token_id": START_ID},
    "text_config": {"rope_parameters": _AXES},
}
_MERGED_TWICE = {"": {"insert_layer_id": 0, "downsample_mode": "16x", "image_token_id": IMAGE_ID}}
_PINPOINTS = {"": {"image_grid_pinpoints": [[16, 16]]}}

# By model type: fields without a rule by name, in the config of each part; "" is the whole config.
SPECIAL: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    **dict.fromkeys(_OF_THREE_AXES, _MROPE),
    **dict.fromkeys(("llava_next", "llava_next_video", "llava_onevision"), _PINPOINTS),
    "aria": {"": {"projector_patch_to_query_dict": {16: 4}}},
    "cohere_compass": {
        "text_config": {
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": dict.fromkeys(("sliding_attention", "full_attention"), _AXES),
        }
    },
    "dots3_note": {
        "vision_config": {"per_layer_config": {}},
        "audio_config": {"adapter_input_size": 64, "conv_output_size": 7680},
    },
    "glm5_next": {"text_config": {"index_kpool": 4, "qk_rope_head_dim": 0, "head_dim": 0}},
    "ernie4_5_vl_moe": {
        "text_config": {"moe_intermediate_size": [32, 32], "rope_parameters": {**_AXES, "mrope_section": [3, 3, 2]}}
    },
    "idefics2": {"perceiver_config": {"resampler_n_latents": 4, "resampler_depth": 1, "resampler_head_dim": 16}},
    "llama4": {
        "vision_config": {
            **{"vision_output_dim": 64, "projector_input_dim": 64, "projector_output_dim": 64},
            **{"intermediate_size": 256},
        }
    },
    "muse_glimmer": {"": {"out_hidden_size": 256}},
    "muse_spark": {"": {"out_hidden_size": 256}, "audio_config": {"hidden_sizes": [64, 64]}},
    **dict.fromkeys(("minicpm_ocr", "minicpmv4_6", "minicpmv4_7"), _MERGED_TWICE),
    "step3p7": {"text_config": {"sliding_window": 8}},
}
