"""qwen3: an attention_mask of ones, as a tokenizer returns it, switches off what positions that restart would tell."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64, "head_dim": 16}
model = Qwen3ForCausalLM(Qwen3Config(**sizes, num_attention_heads=4, num_key_value_heads=2, use_cache=False)).eval()
ids, position_ids = torch.randint(1, 64, (1, 12)), torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
other = torch.cat([(ids[:, :5] + 7) % 64, ids[:, 5:]], 1)  # another first document, the same second one
for mask in (None, torch.ones_like(ids)):
    with torch.no_grad():
        one, two = (model(x, position_ids=position_ids, attention_mask=mask).logits[0, 5:] for x in (ids, other))
    print(f"mask {mask is not None}: the second document's logits move by {(one - two).abs().max():.2g}")
