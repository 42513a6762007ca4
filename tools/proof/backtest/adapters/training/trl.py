"""trl: the collator of supervised fine-tuning, which lays examples out in one row without padding."""

from typing import Any

from packproof.proof.backtest.adapters.training.stand_ins import PAD, stand_in


class FlatRow:
    def __init__(self) -> None:
        stand_in("peft", "accelerate")
        from trl.trainer import sft_trainer  # type: ignore[import-not-found]  # noqa: PLC0415

        self._collate = sft_trainer.DataCollatorForLanguageModeling(pad_token_id=PAD, padding_free=True)

    def __call__(self, documents: list[dict[str, list[int]]]) -> Any:
        return self._collate(documents)
