"""llama: positions that restart isolate documents, and the cache, which is on by default, puts them together again."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).train()
ids, position_ids = torch.randint(1, 64, (1, 12)), torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
other = torch.cat([(ids[:, :5] + 7) % 64, ids[:, 5:]], 1)  # another first document, the same second one
for use_cache in (False, True):
    with torch.no_grad():
        one, two = (model(x, position_ids=position_ids, use_cache=use_cache).logits[0, 5:] for x in (ids, other))
    print(f"use_cache={use_cache}: the second document's logits move by {(one - two).abs().max():.2g}")
