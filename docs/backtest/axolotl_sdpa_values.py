"""axolotl's packed SDPA at 8c42d322: values of another size than keys, and rows without tokens, end in RuntimeError.

The output is viewed in the shape of the queries; transformers' own function, which it stands in for, takes both sizes.
"""

from types import SimpleNamespace

import torch
from axolotl.monkeypatch.attention import sdpa_varlen
from torch.nn.attention import varlen
from transformers.integrations.sdpa_attention import sdpa_attention_forward

varlen.varlen_attn = lambda q, k, v, *_, **__: v  # torch's kernel needs a GPU; only shapes matter here
attend = sdpa_varlen._build_varlen_forward(sdpa_attention_forward)
layer = SimpleNamespace(is_causal=True, training=True, num_key_value_groups=1)
positions = torch.tensor([[0, 0, 1]])
for tokens, size in ((3, 4), (3, 6), (0, 4)):
    q, k, v = torch.randn(1, 2, tokens, 4), torch.randn(1, 2, tokens, 4), torch.randn(1, 2, tokens, size)
    try:
        y, _ = attend(layer, q, k, v, None, scaling=None, position_ids=positions[:, :tokens])
        print(f"{tokens} tokens, keys of 4, values of {size}:", tuple(y.shape))
    except RuntimeError as error:
        print(f"{tokens} tokens, keys of 4, values of {size}:", error)
