"""axolotl's flex mask at 682a9cf7: attention chunks are counted from the begin of the pack, not of the document.

A document of four tokens that lies across rows 7 and 8 is cut by chunks of 8, where alone it is one chunk.
"""

from unittest import mock

import torch
import transformers
from axolotl.monkeypatch.attention import flex_attn
from torch.nn.attention import flex_attention
from transformers.integrations import flex_attention as integration

create = flex_attention.create_block_mask
with (
    mock.patch.object(torch, "__version__", "2.6.0"),  # with others nothing is patched
    mock.patch.object(transformers, "__version__", "4.51.0"),
    mock.patch.object(
        flex_attention, "create_block_mask", lambda *a, **options: create(*a, **options | {"_compile": False})
    ),
):
    flex_attn.patch_flex_make_mask()
for lengths in ([4], [5, 4]):
    numbers = torch.arange(1, len(lengths) + 1).repeat_interleave(torch.tensor(lengths))[None]
    mask = integration.make_flex_block_causal_mask(numbers, attention_chunk_size=8).mask_mod
    rows, last = torch.arange(sum(lengths)), torch.tensor(sum(lengths) - 1)
    attends = mask(torch.tensor(0), torch.tensor(0), last, rows)
    print(f"documents of {lengths}: the last token attends to rows {rows[attends].tolist()}")
