"""Slow, exact, readable operations over packed sequences, and the layout of a pack."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.base.errors import ArgumentError, LayoutError, PackproofError, UsageError
    from packproof.refs.attention import attention
    from packproof.refs.convolution import causal_conv1d, causal_conv1d_step
    from packproof.refs.delta_rule import (
        delta_rule,
        delta_rule_chunked,
        delta_rule_step,
        gated_delta_rule,
        gated_delta_rule_chunked,
        gated_delta_rule_step,
        kda,
        kda_chunked,
        kda_step,
    )
    from packproof.refs.drafts import (
        causal_conv1d_verify,
        gated_delta_rule_verify,
        kda_verify,
        selective_scan_verify,
        ssd_verify,
    )
    from packproof.refs.groups.experts import grouped_mm, mixture_of_experts
    from packproof.refs.groups.permute import dispatch_combine, moe_permute, moe_unpermute
    from packproof.refs.groups.product import scaled_grouped_mm
    from packproof.refs.groups.quantize import quantize_blocks
    from packproof.refs.groups.scale_layouts import pad_scales, swizzle_scales, unpad_scales, unswizzle_scales
    from packproof.refs.hadamard import hadamard, random_signs, rope_hadamard
    from packproof.refs.linear_attention import (
        linear_attention,
        linear_attention_chunked,
        linear_attention_step,
        retention,
        retention_chunked,
        retention_step,
        simple_gla,
        simple_gla_chunked,
        simple_gla_step,
    )
    from packproof.refs.losses.policy import dpo_loss, policy_loss, policy_loss_sequences
    from packproof.refs.losses.router import (
        router_balance_loss_pack,
        router_balance_loss_sequences,
        router_load,
        router_z_loss,
    )
    from packproof.refs.losses.vocabulary import (
        cross_entropy,
        cross_entropy_sequences,
        cross_entropy_sum,
        kl_divergence,
        linear_cross_entropy,
        multi_token_cross_entropy,
        token_entropy,
        token_logprobs,
    )
    from packproof.refs.low_precision import attention_fp8, attention_fp8_naive, dequantize_fp8, quantize_fp8, round_fp8
    from packproof.refs.packers import (
        Piece,
        pack_best_fit,
        pack_first_fit,
        pack_in_order,
        pack_with_split,
        packs_of,
        padding_rate,
    )
    from packproof.refs.packing import (
        PackLayout,
        pack,
        position_ids_from_cu_seqlens,
        seq_idx_from_cu_seqlens,
        unpack,
    )
    from packproof.refs.pools import (
        cache_write,
        causal_conv1d_update,
        gated_delta_rule_update,
        kda_update,
        selective_scan_update,
        ssd_update,
    )
    from packproof.refs.recurrence import join_sequences, over_time, split_sequences
    from packproof.refs.rotary import rope, rope_qk
    from packproof.refs.scan import selective_scan, selective_scan_associative, selective_scan_step
    from packproof.refs.segsum import segsum, segsum_unstable
    from packproof.refs.ssd import ssd, ssd_chunked, ssd_quadratic, ssd_step
    from packproof.refs.ssd_parts import SsdIntermediates, ssd_intermediates, ssd_state

__all__ = [
    "ArgumentError",
    "LayoutError",
    "PackLayout",
    "PackproofError",
    "Piece",
    "SsdIntermediates",
    "UsageError",
    "attention",
    "attention_fp8",
    "attention_fp8_naive",
    "cache_write",
    "causal_conv1d",
    "causal_conv1d_step",
    "causal_conv1d_update",
    "causal_conv1d_verify",
    "cross_entropy",
    "cross_entropy_sequences",
    "cross_entropy_sum",
    "delta_rule",
    "delta_rule_chunked",
    "delta_rule_step",
    "dequantize_fp8",
    "dispatch_combine",
    "dpo_loss",
    "gated_delta_rule",
    "gated_delta_rule_chunked",
    "gated_delta_rule_step",
    "gated_delta_rule_update",
    "gated_delta_rule_verify",
    "grouped_mm",
    "hadamard",
    "join_sequences",
    "kda",
    "kda_chunked",
    "kda_step",
    "kda_update",
    "kda_verify",
    "kl_divergence",
    "linear_attention",
    "linear_attention_chunked",
    "linear_attention_step",
    "linear_cross_entropy",
    "mixture_of_experts",
    "moe_permute",
    "moe_unpermute",
    "multi_token_cross_entropy",
    "over_time",
    "pack",
    "pack_best_fit",
    "pack_first_fit",
    "pack_in_order",
    "pack_with_split",
    "packs_of",
    "pad_scales",
    "padding_rate",
    "policy_loss",
    "policy_loss_sequences",
    "position_ids_from_cu_seqlens",
    "quantize_blocks",
    "quantize_fp8",
    "random_signs",
    "retention",
    "retention_chunked",
    "retention_step",
    "rope",
    "rope_hadamard",
    "rope_qk",
    "round_fp8",
    "router_balance_loss_pack",
    "router_balance_loss_sequences",
    "router_load",
    "router_z_loss",
    "scaled_grouped_mm",
    "segsum",
    "segsum_unstable",
    "selective_scan",
    "selective_scan_associative",
    "selective_scan_step",
    "selective_scan_update",
    "selective_scan_verify",
    "seq_idx_from_cu_seqlens",
    "simple_gla",
    "simple_gla_chunked",
    "simple_gla_step",
    "split_sequences",
    "ssd",
    "ssd_chunked",
    "ssd_intermediates",
    "ssd_quadratic",
    "ssd_state",
    "ssd_step",
    "ssd_update",
    "ssd_verify",
    "swizzle_scales",
    "token_entropy",
    "token_logprobs",
    "unpack",
    "unpad_scales",
    "unswizzle_scales",
]

export(
    sys.modules[__name__],
    {
        "packproof.refs.attention": ("attention",),
        "packproof.refs.convolution": (
            "causal_conv1d",
            "causal_conv1d_step",
        ),
        "packproof.refs.delta_rule": (
            "delta_rule",
            "delta_rule_chunked",
            "delta_rule_step",
            "gated_delta_rule",
            "gated_delta_rule_chunked",
            "gated_delta_rule_step",
            "kda",
            "kda_chunked",
            "kda_step",
        ),
        "packproof.base.errors": (
            "ArgumentError",
            "LayoutError",
            "PackproofError",
            "UsageError",
        ),
        "packproof.refs.groups.permute": ("dispatch_combine", "moe_permute", "moe_unpermute"),
        "packproof.refs.groups.product": ("scaled_grouped_mm",),
        "packproof.refs.groups.quantize": ("quantize_blocks",),
        "packproof.refs.groups.scale_layouts": (
            "pad_scales",
            "swizzle_scales",
            "unpad_scales",
            "unswizzle_scales",
        ),
        "packproof.refs.drafts": (
            "causal_conv1d_verify",
            "gated_delta_rule_verify",
            "kda_verify",
            "selective_scan_verify",
            "ssd_verify",
        ),
        "packproof.refs.groups.experts": (
            "grouped_mm",
            "mixture_of_experts",
        ),
        "packproof.refs.hadamard": (
            "hadamard",
            "random_signs",
            "rope_hadamard",
        ),
        "packproof.refs.linear_attention": (
            "linear_attention",
            "linear_attention_chunked",
            "linear_attention_step",
            "retention",
            "retention_chunked",
            "retention_step",
            "simple_gla",
            "simple_gla_chunked",
            "simple_gla_step",
        ),
        "packproof.refs.losses.vocabulary": (
            "cross_entropy",
            "cross_entropy_sequences",
            "cross_entropy_sum",
            "kl_divergence",
            "linear_cross_entropy",
            "multi_token_cross_entropy",
            "token_entropy",
            "token_logprobs",
        ),
        "packproof.refs.low_precision": (
            "attention_fp8",
            "attention_fp8_naive",
            "dequantize_fp8",
            "quantize_fp8",
            "round_fp8",
        ),
        "packproof.refs.packers": (
            "Piece",
            "pack_best_fit",
            "pack_first_fit",
            "pack_in_order",
            "pack_with_split",
            "packs_of",
            "padding_rate",
        ),
        "packproof.refs.packing": (
            "PackLayout",
            "pack",
            "position_ids_from_cu_seqlens",
            "seq_idx_from_cu_seqlens",
            "unpack",
        ),
        "packproof.refs.losses.policy": (
            "dpo_loss",
            "policy_loss",
            "policy_loss_sequences",
        ),
        "packproof.refs.pools": (
            "cache_write",
            "causal_conv1d_update",
            "gated_delta_rule_update",
            "kda_update",
            "selective_scan_update",
            "ssd_update",
        ),
        "packproof.refs.recurrence": (
            "join_sequences",
            "over_time",
            "split_sequences",
        ),
        "packproof.refs.rotary": (
            "rope",
            "rope_qk",
        ),
        "packproof.refs.losses.router": (
            "router_balance_loss_pack",
            "router_balance_loss_sequences",
            "router_load",
            "router_z_loss",
        ),
        "packproof.refs.scan": (
            "selective_scan",
            "selective_scan_associative",
            "selective_scan_step",
        ),
        "packproof.refs.segsum": (
            "segsum",
            "segsum_unstable",
        ),
        "packproof.refs.ssd": (
            "ssd",
            "ssd_chunked",
            "ssd_quadratic",
            "ssd_step",
        ),
        "packproof.refs.ssd_parts": (
            "SsdIntermediates",
            "ssd_intermediates",
            "ssd_state",
        ),
    },
)
