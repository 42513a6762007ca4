"""Calling conventions declared as data; docs/adapters.md shows each. `peers` lists third-party kernels."""

import sys
from typing import TYPE_CHECKING

from packproof.base.lazy import export

if TYPE_CHECKING:
    from packproof.adapters.conversions import L2Norm, Scaled, base2_log, natural_log
    from packproof.adapters.declaration import adapt
    from packproof.adapters.draft_windows import Tree, WindowBuffer
    from packproof.adapters.metadata import (
        OfKeys,
        cu_seqlens,
        cu_seqlens_int32,
        cu_seqlens_int64,
        lengths,
        mask,
        max_seqlen,
        num_sequences,
        num_tokens,
        once,
        per_token,
        position_ids,
        segment_ids,
        seq_idx,
    )
    from packproof.adapters.pages import Pages
    from packproof.adapters.pool_slots import DraftBuffer, NullSlot, PagedSlots, PoolSlots, SlotPerDraft
    from packproof.adapters.tokens import Batched, Gaps, Packed, Padded, Tokens

__all__ = [
    "Batched",
    "DraftBuffer",
    "Gaps",
    "L2Norm",
    "NullSlot",
    "OfKeys",
    "Packed",
    "Padded",
    "PagedSlots",
    "Pages",
    "PoolSlots",
    "Scaled",
    "SlotPerDraft",
    "Tokens",
    "Tree",
    "WindowBuffer",
    "adapt",
    "base2_log",
    "cu_seqlens",
    "cu_seqlens_int32",
    "cu_seqlens_int64",
    "lengths",
    "mask",
    "max_seqlen",
    "natural_log",
    "num_sequences",
    "num_tokens",
    "once",
    "per_token",
    "position_ids",
    "segment_ids",
    "seq_idx",
]

export(
    sys.modules[__name__],
    {
        "packproof.adapters.declaration": ("adapt",),
        "packproof.adapters.draft_windows": ("Tree", "WindowBuffer"),
        "packproof.adapters.conversions": ("L2Norm", "Scaled", "base2_log", "natural_log"),
        "packproof.adapters.metadata": (
            "OfKeys",
            "cu_seqlens",
            "cu_seqlens_int32",
            "cu_seqlens_int64",
            "lengths",
            "mask",
            "max_seqlen",
            "num_sequences",
            "num_tokens",
            "once",
            "per_token",
            "position_ids",
            "segment_ids",
            "seq_idx",
        ),
        "packproof.adapters.pages": ("Pages",),
        "packproof.adapters.pool_slots": ("DraftBuffer", "NullSlot", "PagedSlots", "PoolSlots", "SlotPerDraft"),
        "packproof.adapters.tokens": ("Batched", "Gaps", "Packed", "Padded", "Tokens"),
    },
)
