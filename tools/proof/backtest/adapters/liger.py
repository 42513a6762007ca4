"""liger-kernel: the rotary embedding of vision towers, where tokens come before heads, and its patched Qwen2-VL."""

from torch import Tensor

from packproof.adapters import once
from packproof.adapters.peers.liger_kernel import table_rows
from packproof.adapters.peers.start_positions import with_nonnegative_starts
from packproof.properties.declarations import Promises, kernel


@kernel(op="rope_qk", promises=Promises(compute="operand"), domain="k == 2 * r", slack=False)
def rope_of_vision(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, offsets: Tensor | None = None, *, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor]:
    """The function that it puts in the place of transformers' for vision: one table row for each token.

    The kernel overwrites q, k and their incoming gradients.
    """
    from liger_kernel.transformers import rope  # noqa: PLC0415

    name = "liger_rotary_pos_emb_with_cast_and_leading_batch"
    rotate = getattr(rope, name, None) or rope.liger_rotary_pos_emb_vision
    cos, sin, starts = with_nonnegative_starts(cos, sin, offsets, cu_seqlens)
    rows = once("liger rows", lambda: table_rows(cos, sin, starts, cu_seqlens, len(q)), cu_seqlens, cos, sin, starts)
    y_q, y_k = rotate(q.clone(), k.clone(), *(x.squeeze(0) for x in rows))
    for y in (y_q, y_k):
        if y.requires_grad:
            y.register_hook(Tensor.clone)
    return y_q, y_k
