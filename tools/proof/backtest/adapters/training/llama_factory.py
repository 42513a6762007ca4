"""LLaMA-Factory: its packer, the collator of its packs, and batches without padding."""

from collections.abc import Iterator
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from packproof.proof.backtest.adapters.training.stand_ins import PAD, labels_of, labels_within, stand_in, tokenizer

Documents = list[dict[str, list[int]]]
_LONGEST = 1 << 20


class Packer:
    """The packer of fine-tuning; each pack is a row with its padding."""

    neat_packing = False

    def __init__(self) -> None:
        stand_in("peft.utils", "peft")
        from llamafactory.data.processor import supervised  # type: ignore[import-not-found]  # noqa: PLC0415

        self._processor = supervised.PackedSupervisedDatasetProcessor

    def packs(self, documents: Documents, capacity: int) -> list[dict[str, Any]]:
        """The packs as rows of a table."""
        options = SimpleNamespace(neat_packing=self.neat_packing, cutoff_len=capacity)
        processor = self._processor(None, SimpleNamespace(pad_token_id=PAD), None, options)
        processor._encode_data_example = lambda prompt, **_: (
            list(documents[prompt[0]]["input_ids"]),
            labels_within(documents[prompt[0]]),
        )
        n = len(documents)
        nothing = {name: [None] * n for name in ("_system", "_tools", "_images", "_videos", "_audios")}
        examples = {"_prompt": [[j] for j in range(n)], "_response": [[None]] * n, **nothing}
        columns = processor.preprocess_dataset(examples)
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def __call__(self, documents: Documents, capacity: int) -> Iterator[dict[str, Any]]:
        names = ("input_ids", "attention_mask", "position_ids", "labels")
        for pack in self.packs(documents, capacity):
            yield {name: torch.tensor(pack[name])[None] for name in names if pack[name] is not None}


class NeatPacks(Packer):
    """Packs with isolated documents, collated for attention with a mask of four axes."""

    neat_packing = True
    model: Any = None
    multiple: int | None = None

    def __init__(self) -> None:
        super().__init__()
        from llamafactory.data import collator  # type: ignore[import-not-found]  # noqa: PLC0415

        kind = collator.SFTDataCollatorWith4DAttentionMask
        plugin = SimpleNamespace(image_token=None, audio_token=None, get_mm_inputs=lambda *_: {})
        options = {
            "tokenizer": tokenizer(),
            "model": self.model,
            "template": SimpleNamespace(mm_plugin=plugin),
            "pad_to_multiple_of": self.multiple,
            "block_diag_attn": True,
            "attn_implementation": "sdpa",
            "neat_packing": True,
        }
        names = {field.name for field in fields(kind)}
        self._collate = kind(**{name: value for name, value in options.items() if name in names})

    def __call__(self, documents: Documents, capacity: int) -> Iterator[dict[str, Any]]:
        for pack in self.packs(documents, capacity):
            batch = self._collate([{name: value for name, value in pack.items() if value is not None}])
            yield {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids", "labels")}


class PaddedPacks(NeatPacks):
    multiple = 8


def _positions_of_text(input_ids: Tensor, attention_mask: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    """As Qwen2-VL has them for a row without images: the tokens of the mask are counted, on each of three axes."""
    positions = (attention_mask.long().cumsum(-1) - 1).masked_fill(attention_mask == 0, 1)
    return positions[None].expand(3, *input_ids.shape).contiguous(), torch.zeros(len(input_ids), 1)


class ThreeAxes(NeatPacks):
    """For a model with positions of three axes."""

    model = SimpleNamespace(config=SimpleNamespace(model_type="qwen2_vl"), get_rope_index=_positions_of_text)


class PaddingFree:
    """Batches without padding of the second version's trainer."""

    def __init__(self) -> None:
        from llamafactory.v1.plugins.trainer_plugins import (  # type: ignore[import-not-found]  # noqa: PLC0415
            batching,
        )

        self._generate = batching.generate_padding_free_batch

    def __call__(self, documents: Documents) -> Any:
        samples = [
            {"input_ids": list(d["input_ids"]), "labels": labels_of(d), "attention_mask": [1] * len(d["input_ids"])}
            for d in documents
        ]
        size = {"micro_batch_size": len(samples), "num_micro_batch": 1, "cutoff_len": _LONGEST}
        [batch] = self._generate(_Buffer(samples), size)
        return batch


class _Buffer:
    def __init__(self, samples: list[dict[str, Any]]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def get(self, _: int) -> list[dict[str, Any]]:
        return self._samples
