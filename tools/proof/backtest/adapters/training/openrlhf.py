"""OpenRLHF: the collator of packs for supervised fine-tuning."""

from types import SimpleNamespace
from typing import Any

import torch

from packproof.proof.backtest.adapters.training.stand_ins import PAD


class NumberedMask:
    def __init__(self) -> None:
        from openrlhf.datasets.sft_dataset import SFTDataset  # type: ignore[import-not-found]  # noqa: PLC0415

        self._collate = SFTDataset.packing_collate_fn

    def __call__(self, documents: list[dict[str, list[int]]]) -> dict[str, Any]:
        rows = [torch.tensor(document["input_ids"], dtype=torch.long)[None] for document in documents]
        items = [(0, row, torch.ones_like(row), {"input_length": row.shape[1]}) for row in rows]
        this = SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=PAD))
        _, ids, mask, _ = self._collate(this, items)
        return {"input_ids": ids, "attention_mask": mask}
