"""NeMo Automodel: its rotary embedding, its loss of multi-token prediction, and the samples of parallel drafts."""

import inspect
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from packproof import refs
from packproof.properties.declarations import kernel
from packproof.properties.ops import Op


@kernel(op="rope", domain=("interleaved == False", "2 * r == k"), slack=False)
def rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    cu_seqlens: Tensor,
    interleaved: bool = False,  # noqa: ARG001
) -> Tensor:
    """With these tables in place of those that the embedding would make. Shorter ones get rows that no token reads.

    Every sequence begins at position 0.
    """
    module: Any = import_module("nemo_automodel.components.models.llama.rope_utils")
    if not len(x):
        return x.clone()
    positions = refs.position_ids_from_cu_seqlens(cu_seqlens, len(x)).long()
    cos, sin = (functional.pad(table, (0, 0, 0, max(0, len(x) - len(table)))).repeat(1, 2) for table in (cos, sin))
    embedding = module.LlamaRotaryEmbedding(SimpleNamespace(head_dim=x.shape[-1], max_position_embeddings=len(cos)))
    embedding._cos_cache, embedding._sin_cache, embedding.max_seq_len_cached = cos, sin, len(cos)
    tables = embedding(x, positions[None])
    q, _ = module.apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], *tables)
    y: Tensor = q[0].transpose(0, 1).to(x.dtype)
    return y


@kernel(op="multi_token_cross_entropy", slack=False)
def mtp_loss(logits: Tensor, labels: Tensor, *, cu_seqlens: Tensor, ignore_index: int = -100) -> Tensor:
    """The loss of each head. Offsets are passed where the function takes them."""
    calculate = import_module("nemo_automodel.components.loss.mtp").calculate_mtp_loss
    takes_offsets = "cu_seqlens" in inspect.signature(calculate).parameters
    losses: list[Tensor] = []

    def loss_of_head(*, logits: Tensor, labels: Tensor, **_: Any) -> Tensor:
        of_tokens = functional.cross_entropy(
            logits[0].float(), labels[0].long(), reduction="sum", ignore_index=ignore_index
        )
        losses.append(of_tokens)
        return of_tokens

    calculate(
        loss_of_head,
        mtp_per_depth_logits=list(logits[None].unbind(2)),
        labels=labels[None],
        model=None,
        ignore_index=ignore_index,
        **({"cu_seqlens": cu_seqlens} if takes_offsets else {}),
    )
    return torch.stack(losses)


def _sums_before(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The sum of each token of a sequence and those before it; 0 at its first token, which nothing predicts."""
    pieces = [piece.cumsum(0) for piece in refs.split_sequences(x, cu_seqlens)]
    return refs.join_sequences([torch.cat([0 * sums[:1], sums[1:]]) for sums in pieces], x)


SUMS = Op(name="sums_of_drafts", reference=_sums_before, inputs={"x": "t d"}, outputs={"y": "t d"}, sizes=({"d": 3},))


@kernel(op=SUMS, domain="tokens > 0", slack=False)
def samples_of_drafts(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The sum of what each draft of depth 1 attends to, at the token that it predicts, where all are sampled."""
    data: Any = import_module("nemo_automodel.components.speculative.eagle.peagle_data")
    make_mask = import_module("nemo_automodel.components.speculative.eagle.peagle_attention").create_peagle_mask_mod
    torch.manual_seed(0)
    # labels are ignored where a document begins, but for the first row, which no model predicts
    predicted = refs.position_ids_from_cu_seqlens(cu_seqlens, len(x)) != 0
    predicted[0] = True
    anchors, depths = data.generate_cod_sample_indices(len(x), predicted.long(), num_depths=2, down_sample_ratio=1.0)
    mask = make_mask(anchors, depths, cu_seqlens.diff().long(), len(x))
    rows = torch.arange(len(anchors))
    attends = mask(0, 0, rows[:, None], rows[None])
    sums = attends.to(x.dtype) @ x[anchors + depths]
    drafts = depths == 1
    return torch.zeros_like(x).index_add(0, (anchors + depths)[drafts], sums[drafts])
