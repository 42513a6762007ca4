"""liger-kernel: its rotary embedding of whole heads, and its losses. None has a packing argument, most overwrite."""

import torch
from torch import Tensor

from packproof.adapters import Batched, once, seq_idx
from packproof.adapters.metadata import positions
from packproof.adapters.peers.labels import adapt_loss, widened
from packproof.adapters.peers.start_positions import with_nonnegative_starts
from packproof.properties.declarations import Promises, kernel

_HEADS_FIRST = Batched(axis=2)


@kernel(op="rope_qk", promises=Promises(compute="operand"), domain="k == 2 * r", slack=False)
def rope_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, offsets: Tensor | None = None, *, cu_seqlens: Tensor
) -> tuple[Tensor, Tensor]:
    """Called on a batch of one pack, with a table row for each token, gathered once per batch.

    The kernel overwrites q, k and their incoming gradients. So its time includes a copy of each.
    """
    from liger_kernel.transformers.rope import liger_rotary_pos_emb  # noqa: PLC0415

    cos, sin, starts = with_nonnegative_starts(cos, sin, offsets, cu_seqlens)
    rows = once("liger rows", lambda: _table_rows(cos, sin, starts, cu_seqlens, len(q)), cu_seqlens, cos, sin, starts)
    q_in, k_in = (_HEADS_FIRST.to(x, cu_seqlens).clone() for x in (q, k))
    rotated: tuple[Tensor, Tensor] = liger_rotary_pos_emb(q_in, k_in, *rows)
    y_q, y_k = (_packed_output(y, cu_seqlens, len(q)) for y in rotated)
    return y_q, y_k


def _table_rows(cos: Tensor, sin: Tensor, starts: Tensor, cu_seqlens: Tensor, tokens: int) -> list[Tensor]:
    """Both tables as (1, t, 2r), with two equal halves; zeros in slack."""
    position, sequence = positions(cu_seqlens, tokens), seq_idx(cu_seqlens, tokens)
    is_slack = (position < 0)[:, None]
    table_row = (
        torch.where(position < 0, 0, position + starts[sequence.clamp(min=0)]) if len(starts) else position.clamp(min=0)
    )
    rows = (torch.where(is_slack, 0, x[table_row]) for x in (cos, sin))
    return [torch.cat([x, x], -1).unsqueeze(0) for x in rows]


def _packed_output(y: Tensor, cu_seqlens: Tensor, tokens: int) -> Tensor:
    """(1, h, t, k) as (t, h, k). The incoming gradient is copied, since the kernel overwrites it."""
    y = _HEADS_FIRST.back(y, cu_seqlens, tokens)
    if y.requires_grad:
        y.register_hook(torch.clone)  # type: ignore[no-untyped-call]
    return y


def _cross_entropy(
    logits: Tensor, labels: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> Tensor:
    """The mean over rows. The losses of rows are stored in the dtype of the logits, and so is their sum.

    The kernel overwrites the logits with their gradient. So its time includes a copy.
    """
    from liger_kernel.transformers.functional import liger_cross_entropy  # noqa: PLC0415

    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "lse_square_scale": z_loss}
    return widened(liger_cross_entropy(logits.clone(), labels.long(), **options))


def _token_logprobs(logits: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    """The same without a reduction, negated."""
    from liger_kernel.transformers.functional import liger_cross_entropy  # noqa: PLC0415

    return -widened(liger_cross_entropy(logits.clone(), labels.long(), ignore_index=ignore_index, reduction="none"))


def _linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """The mean over rows, of a projection in chunks of them; both gradients are computed in the forward pass."""
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy  # noqa: PLC0415

    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "lse_square_scale": z_loss}
    return widened(liger_fused_linear_cross_entropy(x, weight, labels.long(), **options))


cross_entropy = adapt_loss(_cross_entropy, "cross_entropy", promises=Promises(compute="operand"))
token_logprobs = adapt_loss(_token_logprobs, "token_logprobs", promises=Promises(compute="operand"))
linear_cross_entropy = adapt_loss(_linear_cross_entropy, "linear_cross_entropy")
