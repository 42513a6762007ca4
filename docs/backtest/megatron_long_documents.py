"""Megatron-LM's SequencePacker at 5f5f465a: a sequence longer than a bin ends in RuntimeError of a copy."""

import torch
from megatron.rl.sequence_packing_utils import SequencePacker

for tokens in (10, 11):
    try:
        rows = SequencePacker(10, pad_token=0).pack_sequences(torch.ones(1, tokens, dtype=torch.long))[0]
        print(f"{tokens} tokens, bins of 10:", tuple(rows.shape))
    except RuntimeError as error:
        print(f"{tokens} tokens, bins of 10:", error)
