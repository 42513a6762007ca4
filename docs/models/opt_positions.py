"""opt: position_ids restart the positions and never reach the mask, so that attention sees across documents."""

import torch
from transformers import OPTConfig, OPTForCausalLM

sizes = {"hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "vocab_size": 64, "word_embed_proj_dim": 64}
model = OPTForCausalLM(OPTConfig(**sizes, num_attention_heads=4, use_cache=False)).eval()
ids, position_ids = torch.randint(3, 64, (1, 12)), torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
other = torch.cat([(ids[:, :5] + 7) % 64, ids[:, 5:]], 1)  # another first document, the same second one
with torch.no_grad():
    one, two = (model(x, position_ids=position_ids).logits[0, 5:] for x in (ids, other))
print(f"the second document's logits move by {(one - two).abs().max():.2g}")
