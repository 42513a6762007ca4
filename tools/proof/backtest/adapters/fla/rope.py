"""flash-linear-attention: its rotary embedding, where it demands tables as long as the pack."""

from torch import Tensor
from torch.nn import functional

from packproof.properties.declarations import kernel


@kernel(op="rope", domain="k <= 256", slack=False)
def rope(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    """Every sequence begins at position 0. Shorter tables get rows that no token reads."""
    from fla.modules.rotary import rotary_embedding  # noqa: PLC0415

    cos, sin = (functional.pad(table, (0, 0, 0, max(0, len(x) - len(table)))) for table in (cos, sin))
    y: Tensor = rotary_embedding(x.unsqueeze(0), cos, sin, interleaved=interleaved, cu_seqlens=cu_seqlens)
    return y.squeeze(0)
