"""axolotl's collator of distillation at ccc94da8: labels across documents, and positions of 0 in padding."""

import sys
from unittest.mock import MagicMock

sys.modules["colorama"] = MagicMock()  # for colours of a log

from axolotl.integrations.kd.collator import KDBatchSamplerDataCollatorForSeq2Seq
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

words = Tokenizer(WordLevel({"<pad>": 0, "<unk>": 1}, unk_token="<unk>"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", padding_side="right")
tokenizer.deprecation_warnings = {}
documents = [
    {
        "input_ids": ids,
        "attention_mask": [1] * len(ids),
        "labels": ids,
        "position_ids": [*range(len(ids))],
        "target_token_ids": [[token, token] for token in ids],
        "target_logprobs": [[-0.5, -1.0] for _ in ids],
        "target_mask": [[1, 1] for _ in ids],
    }
    for ids in ([5, 6], [7, 8, 9])
]
batch = KDBatchSamplerDataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=8)([documents])
print("labels", batch["labels"].tolist(), "positions", batch["position_ids"].tolist())
