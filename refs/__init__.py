"""Slow, exact, readable operations over packed sequences, and the layout of a pack."""

import sys
from typing import TYPE_CHECKING

from packproof.refs.lazy import export

if TYPE_CHECKING:
    from packproof.refs.attention import attention
    from packproof.refs.convolution import causal_conv1d, causal_conv1d_step
    from packproof.refs.errors import ArgumentError, LayoutError, PackproofError, UsageError
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
    "causal_conv1d",
    "causal_conv1d_step",
    "join_sequences",
    "over_time",
    "pack",
    "pack_best_fit",
    "pack_first_fit",
    "pack_in_order",
    "pack_with_split",
    "packs_of",
    "padding_rate",
    "position_ids_from_cu_seqlens",
    "rope",
    "rope_qk",
    "segsum",
    "segsum_unstable",
    "selective_scan",
    "selective_scan_associative",
    "selective_scan_step",
    "seq_idx_from_cu_seqlens",
    "split_sequences",
    "ssd",
    "ssd_chunked",
    "ssd_intermediates",
    "ssd_quadratic",
    "ssd_state",
    "ssd_step",
    "unpack",
]

export(
    sys.modules[__name__],
    {
        "packproof.refs.attention": ("attention",),
        "packproof.refs.convolution": (
            "causal_conv1d",
            "causal_conv1d_step",
        ),
        "packproof.refs.errors": (
            "ArgumentError",
            "LayoutError",
            "PackproofError",
            "UsageError",
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
        "packproof.refs.recurrence": (
            "join_sequences",
            "over_time",
            "split_sequences",
        ),
        "packproof.refs.rotary": (
            "rope",
            "rope_qk",
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
