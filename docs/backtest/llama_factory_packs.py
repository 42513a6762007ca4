"""LLaMA-Factory's packer at c3c0efba, 833f6027, 468723c5 and 63a89710: long documents, positions and mask of padding.

A document longer than a pack is left out, with a warning. Padding has positions of 0, so that offsets that are derived
from positions get a document for each of its rows; at 468723c5 the collator replaces them. Without neat packing the
mask is 1 there.
"""

import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

for name in ("peft", "peft.utils"):  # imported, and not used by the packer
    sys.modules[name] = MagicMock()
from llamafactory.data.processor.supervised import PackedSupervisedDatasetProcessor

documents = [[5, 6], [7, 8, 9], [*range(10, 22)]]
for neat in (False, True):
    options = SimpleNamespace(neat_packing=neat, cutoff_len=8)
    packer = PackedSupervisedDatasetProcessor(None, SimpleNamespace(pad_token_id=0), None, options)
    packer._encode_data_example = lambda prompt, **_: (documents[prompt[0]], documents[prompt[0]])
    names = ("_response", "_system", "_tools", "_images", "_videos", "_audios")
    examples = {"_prompt": [[0], [1], [2]], **{name: [[None]] * 3 for name in names}}
    packs = packer.preprocess_dataset(examples)
    print(f"neat packing {neat}:", {name: packs[name] for name in ("input_ids", "attention_mask", "position_ids")})
