"""Argument checks of rotary tables and of the Hadamard transform."""

from collections.abc import Mapping
from itertools import pairwise

from torch import Tensor

from packproof.base.arguments import describe_axis_size, host_offsets
from packproof.base.errors import ArgumentError
from packproof.base.provenance.host_work import argument_checks
from packproof.base.wording import plural


def check_power_of_two(op: str, name: str, k: int) -> None:
    """Raise ArgumentError unless k, the channels of a head, is a power of two: Sylvester's construction needs it."""
    if k < 1 or k & (k - 1):
        raise ArgumentError(
            f"{op}: {name} has {describe_axis_size(k, 'k')} but a power of two was expected\n"
            f"    Append zeros, up to {1 << max(k - 1, 0).bit_length()} of them."
        )


@argument_checks()
def check_rotary_tables(
    op: str, rotated: str, sizes: Mapping[str, int], cu_seqlens: Tensor | None = None, offsets: Tensor | None = None
) -> None:
    """Raise ArgumentError unless the tables cos and sin (m, r) fit the channels of a head and cover all positions.

    rotated: the name of the first rotated tensor, for the message.
    cu_seqlens: (s + 1,), read on the host; None to leave positions unchecked.
    offsets: (s,), read on the host.
    """
    if 2 * sizes["r"] > sizes["k"]:
        raise ArgumentError(
            f"{op}: cos rotates 2 x {sizes['r']} channels (axis r) but {rotated} has {sizes['k']} (axis k)"
        )
    if cu_seqlens is None or not sizes["s"]:
        return
    lengths = [end - start for start, end in pairwise(host_offsets(op, cu_seqlens))]
    starts = [0] * len(lengths) if offsets is None else host_offsets(op, offsets, "offsets")
    ends = [start + length if length else 0 for start, length in zip(starts, lengths, strict=True)]
    end, sequence = max((end, j) for j, end in enumerate(ends))
    if end <= sizes["m"]:
        return
    table_rows, tokens = f"cos has {describe_axis_size(sizes['m'], 'm')}", plural(lengths[sequence], "token")
    if offsets is None:
        raise ArgumentError(
            f"{op}: {table_rows} but the longest sequence has {tokens}\n"
            "    Make cos and sin one row per position of the longest sequence."
        )
    raise ArgumentError(
        f"{op}: {table_rows} but sequence {sequence} starts at position {starts[sequence]} and has {tokens}\n"
        f"    Make cos and sin one row per position: {end} of them."
    )
