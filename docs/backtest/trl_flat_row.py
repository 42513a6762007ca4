"""trl's padding-free collator at 5206c927: a mask of ones beside positions, and labels across documents.

Models of transformers look for documents in the positions only where there is no mask, unless attention is
FlashAttention's. The label of a document's first token is kept, which the last token of the document before predicts.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch
from transformers import LlamaConfig
from transformers.masking_utils import create_causal_mask

for name in ("accelerate", "peft"):  # imported, and not used by the collator
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__spec__ = ModuleSpec(name, None)
    sys.modules[name].__getattr__ = lambda _: object
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(
    [{"input_ids": [5, 6]}, {"input_ids": [7, 8, 9]}]
)
print({name: value.tolist() for name, value in batch.items()})
config = LlamaConfig(attn_implementation="eager")
x = torch.zeros(1, 5, 1)
for label, mask in (("with its mask", batch["attention_mask"]), ("without a mask", None)):
    allowed = create_causal_mask(config, x, mask, None, position_ids=batch["position_ids"])[0, 0] == 0
    print(f"{label} the last token attends to {allowed[-1].tolist()}")
