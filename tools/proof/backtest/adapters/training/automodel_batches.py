"""NeMo Automodel: batches for kernels of packed sequences, and the masks that models of transformers make of them."""

from importlib import import_module
from itertools import accumulate
from typing import Any

import torch

from packproof import refs
from packproof.proof.backtest.adapters.training.stand_ins import IGNORED, PAD, labels_within

Documents = list[dict[str, list[int]]]
_MULTIPLE = 8


class TokensOfPacks:
    """A row with padding at its end, as tokens along one axis."""

    def __init__(self) -> None:
        self._process = import_module("nemo_automodel.components.distributed.thd_utils").process_input_for_thd

    def __call__(self, documents: Documents) -> dict[str, Any]:
        lengths = [len(document["input_ids"]) for document in documents]
        total = sum(lengths)
        padding = -total % _MULTIPLE
        row = {
            "input_ids": [token for d in documents for token in d["input_ids"]] + [PAD] * padding,
            "labels": [label for d in documents for label in labels_within(d)] + [IGNORED] * padding,
            "position_ids": [k for n in lengths for k in range(n)] + [0] * padding,
            "seq_lens": lengths,
            "seq_lens_padded": [*lengths[:-1], lengths[-1] + padding],
        }
        batch = self._process({name: torch.tensor([values]) for name, values in row.items()}, padding_token_id=PAD)
        offsets = batch["cu_seqlens"].clamp(max=total)  # the last one has the padding, as its page says
        names = ("input_ids", "labels", "position_ids")
        mask = ~batch["padding_mask"][None]
        return {name: batch[name][None] for name in names} | {"attention_mask": mask.long(), "cu_seqlens": offsets}


class MaskOfLlama:
    """The offsets that flash attention takes in a Llama, of a mask that numbers the documents."""

    def __init__(self) -> None:
        from transformers import LlamaConfig, modeling_flash_attention_utils  # noqa: PLC0415
        from transformers.models.llama import modeling_llama  # noqa: PLC0415

        import_module("nemo_automodel.components.models.common.packing").configure_packing("flash_attention_2")
        self._attention, self._model = modeling_flash_attention_utils, modeling_llama
        self._config = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1)
        self._config._attn_implementation = "flash_attention_2"

    def __call__(self, documents: Documents) -> dict[str, Any]:
        offsets = torch.tensor([0, *accumulate(len(document["input_ids"]) for document in documents)])
        tokens = torch.tensor([[token for document in documents for token in document["input_ids"]]])
        numbers = refs.seq_idx_from_cu_seqlens(offsets, tokens.shape[1])[None].long() + 1
        mask = self._model.create_causal_mask(
            config=self._config,
            inputs_embeds=torch.zeros(1, tokens.shape[1], 8),
            attention_mask=numbers,
            past_key_values=None,
            position_ids=None,
        )
        if mask is None:  # attention then takes the row for one document
            return {"input_ids": tokens}
        _, cu_seqlens, longest, *_ = self._attention._get_unpad_data(mask)
        return {"input_ids": tokens, "cu_seqlens": cu_seqlens, "max_seqlen": int(longest)}
