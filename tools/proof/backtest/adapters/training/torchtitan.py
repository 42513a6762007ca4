"""torchtitan: the offsets that attention gets for a row of documents."""

import inspect
from typing import Any

import torch

from packproof.proof.backtest.adapters.training.stand_ins import stand_in

_END = 2  # the token that ends a document; a chat has it inside, too


class Offsets:
    def __init__(self) -> None:
        stand_in("tyro")
        from torchtitan.models.common import attention  # type: ignore[import-not-found]  # noqa: PLC0415

        self._create = attention.create_varlen_metadata_for_document
        self._takes_tokens = "eos_id" in inspect.signature(self._create).parameters

    def __call__(self, documents: list[dict[str, list[int]]]) -> dict[str, Any]:
        row = torch.tensor([token for d in documents for token in d["input_ids"]], dtype=torch.long)
        offsets = self._create(*self._arguments([d["input_ids"] for d in documents]))
        return {"input_ids": row[None], "cu_seqlens": offsets.cu_seq_q, "max_seqlen": int(offsets.max_q)}

    def _arguments(self, documents: list[list[int]]) -> tuple[Any, ...]:
        """The tokens, each document with its end, or the positions: what the function takes at a commit."""
        if not self._takes_tokens:
            return (torch.tensor([[k for ids in documents for k in range(len(ids))]]),)
        ended = [token for ids in documents if ids for token in [*ids[:-1], _END]]
        return torch.tensor([ended], dtype=torch.long), _END
