"""Slow, exact, readable operations over packed sequences, and the layout of a pack."""

from packproof.refs.errors import ArgumentError, CheckFailed, LayoutError, PackproofError, UsageError
from packproof.refs.packing import (
    PackLayout,
    pack,
    position_ids_from_cu_seqlens,
    seq_idx_from_cu_seqlens,
    unpack,
)

__all__ = [
    "ArgumentError",
    "CheckFailed",
    "LayoutError",
    "PackLayout",
    "PackproofError",
    "UsageError",
    "pack",
    "position_ids_from_cu_seqlens",
    "seq_idx_from_cu_seqlens",
    "unpack",
]
