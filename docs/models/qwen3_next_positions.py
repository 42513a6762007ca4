"""qwen3_next: attention isolates by position_ids, the gated delta rule beside it takes no notice of them."""

import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

sizes = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 64, "head_dim": 16, "num_experts": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
layers = {"layer_types": ["linear_attention", "full_attention"], "moe_intermediate_size": 32, "num_experts_per_tok": 1}
model = Qwen3NextForCausalLM(Qwen3NextConfig(**sizes, **heads, **layers)).eval()
ids, position_ids = torch.randint(3, 64, (1, 12)), torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
other = torch.cat([(ids[:, :5] + 7) % 64, ids[:, 5:]], 1)  # another first document, the same second one
with torch.no_grad():
    one, two = (model(x, position_ids=position_ids, use_cache=False).logits[0, 5:] for x in (ids, other))
print(f"the second document's logits move by {(one - two).abs().max():.2g}")
