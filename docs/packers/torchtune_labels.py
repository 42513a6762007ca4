"""torchtune's packs keep the label of each document's first token, which the recipe shifts to the document before.

`TextCompletionDataset` has labels that are its tokens ("no need to offset labels by 1 - happens in the recipe").
"""

import torch
from torchtune.data import padded_collate_packed
from torchtune.datasets import PackedDataset

documents = [[1, 5, 6], [1, 7, 8, 9]]
samples = [{"tokens": tokens, "labels": list(tokens)} for tokens in documents]
batch = padded_collate_packed([PackedDataset(samples, max_seq_len=8)[0]])
labels = torch.hstack((batch["labels"][..., 1:], torch.tensor([[-100]])))  # as recipes/full_finetune_distributed.py
print("tokens   ", batch["tokens"][0].tolist())
print("predicted", labels[0].tolist())
row = len(documents[0]) - 1
attended = batch["mask"][0, row].nonzero().flatten().tolist()
print(f"row {row} attends to rows {attended}, of document 0, and is to predict {int(labels[0, row])}, of document 1")
