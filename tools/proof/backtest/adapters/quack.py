"""quack: its rotary embedding in place."""

from torch import Tensor

from packproof.adapters import cu_seqlens_int32, max_seqlen, once
from packproof.properties.declarations import kernel


@kernel(
    op="rope", dtypes=("bfloat16", "float16"), domain=("k <= 512", "k % 8 == 0", "2 * r % 8 == 0"), slack=False
)  # fmt: skip
def rope_in_place(x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, interleaved: bool = False) -> Tensor:
    """It overwrites x and the incoming gradient, and gets a copy of each."""
    from quack.rotary import apply_rotary_emb  # noqa: PLC0415

    longest = once("longest", lambda: max_seqlen(cu_seqlens, len(x)), cu_seqlens)
    y: Tensor = apply_rotary_emb(
        x.clone(),
        cos,
        sin,
        interleaved=interleaved,
        inplace=True,
        cu_seqlens=cu_seqlens_int32(cu_seqlens, len(x)),
        max_seqlen=longest,
    )
    if y.requires_grad:
        y.register_hook(Tensor.clone)  # type: ignore[no-untyped-call]
    return y
