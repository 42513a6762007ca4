"""How a module learns where documents begin: each convention makes keyword arguments from a layout."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch

from packproof.base.errors import UsageError, checked_init
from packproof.base.names import require_known
from packproof.harness.process.naming import Location
from packproof.models.subjects.pack import Pack, cumulative_lengths

Arguments = Mapping[str, Any]


@checked_init
@dataclass(frozen=True)
class Convention:
    """How boundaries reach a module.

    >>> import packproof
    >>> def ends(pack):
    ...     return {"ends": pack.offsets[1:].tolist()}
    >>> packproof.Convention("ends", "the end of each document", ends).name
    'ends'
    """

    name: str
    """The name in reports."""
    about: str
    """One line of description."""
    arguments: Callable[[Pack], Arguments]
    """Makes the keyword arguments of forward from a pack, besides the input of shape (1, t) or (1, t, d). The same
    function makes those of one document alone.
    """
    optional: tuple[str, ...] = ("use_cache",)
    """Arguments to leave out if forward does not take them."""
    batched: bool = True
    """Whether the input has a leading axis of one."""
    padding: Literal["", "end", "between"] = ""
    """Where a pack may have rows outside of every document, marked by -1 in `pack.document`: nowhere (""), past the
    last document ("end"), or between documents too ("between").
    """
    labels: Literal["every", "first_ignored", "shifted"] = "every"
    """The labels for a loss: one for each token ("every"), -100 at the first token of each document
    ("first_ignored"), or shifted already, as `shift_labels` ("shifted").
    """


def _positions(pack: Pack) -> dict[str, Any]:
    return {"position_ids": pack.position[None], "use_cache": False}


def _flash(pack: Pack) -> dict[str, Any]:
    offsets, longest = cumulative_lengths(pack.lengths, torch.int32, pack.device), max(pack.lengths)
    return {
        "cu_seq_lens_q": offsets,
        "cu_seq_lens_k": offsets.clone(),
        "max_length_q": longest,
        "max_length_k": longest,
    }


def _seq_idx(pack: Pack) -> dict[str, Any]:
    return {"seq_idx": pack.document[None].int()}


def _additive(pack: Pack) -> torch.Tensor:
    mask = torch.zeros(pack.sees.shape, dtype=pack.dtype, device=pack.device)
    return mask.masked_fill(~pack.sees, torch.finfo(pack.dtype).min)


def _flex(pack: Pack) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask  # noqa: PLC0415  (needs a torch that has it)

    def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
        return (pack.document[query] == pack.document[key]) & (query >= key)

    return create_block_mask(sees, None, None, pack.tokens, pack.tokens, device=pack.device)


def _thd(pack: Pack) -> SimpleNamespace:
    offsets, longest = cumulative_lengths(pack.lengths, torch.int32, pack.device), max(pack.lengths)
    padded_offsets = offsets.clone()
    padded_offsets[-1] = pack.tokens  # padding past the last document counts as its rows
    offset_fields = {
        **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_kv"), offsets),
        **dict.fromkeys(("cu_seqlens_q_padded", "cu_seqlens_kv_padded"), padded_offsets),
    }
    return SimpleNamespace(qkv_format="thd", **offset_fields, max_seqlen_q=longest, max_seqlen_kv=longest)


def _engine(pack: Pack) -> dict[str, Any]:
    """Padding belongs to a sequence without tokens and without a state index."""
    count, empty = len(pack.lengths), 1 if pack.gaps else 0
    indices = [*range(count), *[-1] * empty]
    return {
        "query_start_loc": cumulative_lengths([*pack.lengths, *[0] * empty], torch.int32, pack.device),
        "state_indices": torch.tensor(indices, dtype=torch.int32, device=pack.device),
        "has_initial_state": torch.zeros(count + empty, dtype=torch.bool, device=pack.device),
    }


_HF_LABELS: Literal["first_ignored"] = "first_ignored"  # as DataCollatorWithFlattening and TRL's packing send them

CONVENTIONS: Mapping[str, Convention] = {
    convention.name: convention
    for convention in (
        Convention(
            "hf_position_ids", "position_ids restarted for each document, no cache", _positions, labels=_HF_LABELS
        ),
        Convention(
            "hf_mrope",
            "position_ids of three axes (3, 1, t), restarted for each document, no cache",
            lambda pack: {"position_ids": pack.position.expand(3, 1, -1), "use_cache": False},
            labels=_HF_LABELS,
        ),
        Convention(
            "hf_mrope_text",
            "position_ids (4, 1, t): those of the text, then three axes, as the Qwen2-VL family takes packs; no cache",
            lambda pack: {"position_ids": pack.position.expand(4, 1, -1), "use_cache": False},
            labels=_HF_LABELS,
        ),
        Convention(
            "hf_flash_kwargs",
            "cu_seq_lens_q/k, max_length_q/k, seq_idx and position_ids: all that a padding-free collator sends",
            lambda pack: {**_positions(pack), **_flash(pack), **_seq_idx(pack)},
            labels=_HF_LABELS,
        ),
        Convention(
            "hf_flash_kwargs_no_position_ids",
            "the same without position_ids",
            lambda pack: {**_flash(pack), **_seq_idx(pack), "use_cache": False},
            labels=_HF_LABELS,
        ),
        Convention(
            "hf_flash_kwargs_no_seq_idx",
            "the same without seq_idx",
            lambda pack: {**_positions(pack), **_flash(pack)},
            labels=_HF_LABELS,
        ),
        Convention(
            "hf_cache",
            "position_ids restarted, with use_cache=True, the default of most configs",
            lambda pack: {"position_ids": pack.position[None], "use_cache": True},
            optional=(),
            labels=_HF_LABELS,
        ),
        Convention(
            "hf_ones_mask",
            "position_ids restarted, with an attention_mask of ones, as a tokenizer returns it",
            lambda pack: {
                **_positions(pack),
                "attention_mask": torch.ones(1, pack.tokens, dtype=torch.int64, device=pack.device),
            },
            labels=_HF_LABELS,
        ),
        Convention(
            "mask4d",
            "a boolean block-diagonal causal attention_mask (1, 1, t, t), and position_ids",
            lambda pack: {**_positions(pack), "attention_mask": pack.sees[None, None]},
            labels=_HF_LABELS,
        ),
        Convention(
            "mask4d_additive",
            "the same mask as numbers: 0, or the smallest of the dtype",
            lambda pack: {**_positions(pack), "attention_mask": _additive(pack)[None, None]},
            labels=_HF_LABELS,
        ),
        Convention(
            "flex",
            "a BlockMask of flex attention as attention_mask, and position_ids",
            lambda pack: {**_positions(pack), "attention_mask": _flex(pack)},
            labels=_HF_LABELS,
        ),
        Convention(
            "segment_ids",
            "segment_ids (1, t), from 1 on, 0 for padding",
            lambda pack: {"segment_ids": pack.document[None] + 1},
            padding="between",
        ),
        Convention(
            "document_ids",
            "document_ids (1, t), from 0 on, -1 for padding",
            lambda pack: {"document_ids": pack.document[None]},
            padding="between",
        ),
        Convention(
            "seq_idx", "seq_idx int32 (1, t), as mamba's modules take it, -1 for padding", _seq_idx, padding="between"
        ),
        Convention("seq_lens", "seq_lens, a list of lengths", lambda pack: {"seq_lens": list(pack.lengths)}),
        Convention(
            "cu_seqlens",
            "cu_seqlens int32 (s + 1,)",
            lambda pack: {"cu_seqlens": cumulative_lengths(pack.lengths, torch.int32, pack.device)},
            padding="end",
        ),
        Convention(
            "cu_seqlens_flat",
            "cu_seqlens int32 (s + 1,), tokens without an axis of batches: (t, d)",
            lambda pack: {"cu_seqlens": cumulative_lengths(pack.lengths, torch.int32, pack.device)},
            batched=False,
            padding="end",
        ),
        Convention(
            "packed_seq_params",
            "packed_seq_params of Megatron: qkv_format thd, cu_seqlens_q/kv, max_seqlen_q/kv",
            lambda pack: {"packed_seq_params": _thd(pack)},
            padding="end",
        ),
        Convention(
            "engine",
            "query_start_loc, state_indices and has_initial_state, as inference engines batch prompts",
            _engine,
            padding="end",
        ),
    )
}


def find_convention(value: "str | Convention") -> Convention:
    """A Convention itself, packproof's convention of this name, or a user's at "module:NAME". Raises UsageError."""
    if isinstance(value, Convention):
        return value
    if ":" not in value:
        return CONVENTIONS[require_known("convention", value, CONVENTIONS)]
    user_convention = Location.parse(value).find()
    if not isinstance(user_convention, Convention):
        raise UsageError(
            f"convention: {value!r} is of type {type(user_convention).__name__}, expected a packproof.Convention"
        )
    return user_convention
