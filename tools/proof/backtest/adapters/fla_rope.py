"""flash-linear-attention: its rotary embedding, where it demands tables as long as the pack."""

from torch import Tensor
from torch.nn import functional

from packproof.adapters.peers.start_positions import with_nonnegative_starts
from packproof.properties.declarations import kernel


@kernel(op="rope", domain="k <= 256", slack=False)
def rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    offsets: Tensor | None = None,
    *,
    cu_seqlens: Tensor,
    interleaved: bool = False,
) -> Tensor:
    """Shorter tables get rows that no token reads, and rows for positions below 0."""
    from fla.modules.rotary import rotary_embedding  # noqa: PLC0415

    cos, sin, starts = with_nonnegative_starts(cos, sin, offsets, cu_seqlens)
    cos, sin = (functional.pad(table, (0, 0, 0, max(0, len(x) - len(table)))) for table in (cos, sin))
    y: Tensor = rotary_embedding(
        x.unsqueeze(0), cos, sin, interleaved=interleaved, seqlen_offsets=starts, cu_seqlens=cu_seqlens
    )
    return y.squeeze(0)
