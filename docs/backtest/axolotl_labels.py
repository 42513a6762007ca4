"""axolotl's collators at 20620771, 59cd4725 and 92afa4fa: labels across documents, and zeros in padding.

The label of a document's first token is kept, which a model that shifts labels predicts from the last token of the
document before. Padding has positions of 0, but at 92afa4fa: offsets that are derived from positions get a document for
each of its rows.
"""

import sys
from unittest.mock import MagicMock

sys.modules["colorama"] = MagicMock()  # for colours of a log

from axolotl.utils.collators import batching
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

words = Tokenizer(WordLevel({"<pad>": 0, "<unk>": 1}, unk_token="<unk>"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", padding_side="right")
documents = [
    {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ids, "position_ids": [*range(len(ids))]}
    for ids in ([5, 6], [7, 8, 9])
]
for name in ("BatchSamplerDataCollatorForSeq2Seq", "V2BatchSamplerDataCollatorForSeq2Seq"):
    batch = getattr(batching, name)(tokenizer, pad_to_multiple_of=8)(documents)
    print(name, "labels", batch["labels"].tolist(), "positions", batch["position_ids"].tolist())
