"""gemma2: eager attention, its default, adds a boolean 4-D mask to the scores as 0 and 1, and so hides nothing."""

import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64, "head_dim": 16}
model = Gemma2ForCausalLM(Gemma2Config(**sizes, num_attention_heads=4, num_key_value_heads=2, use_cache=False)).eval()
ids, document = torch.randint(3, 64, (1, 12)), torch.tensor([0] * 5 + [1] * 7)
mask = ((document[:, None] == document) & torch.ones(12, 12).tril().bool())[None, None]
other = torch.cat([(ids[:, :5] + 7) % 64, ids[:, 5:]], 1)  # another first document, the same second one
for kind, given in (("numbers", torch.zeros(mask.shape).masked_fill(~mask, -1e30)), ("booleans", mask)):
    with torch.no_grad():
        one, two = (model(x, attention_mask=given).logits[0, 5:] for x in (ids, other))
    print(f"a mask of {kind}: the second document's logits move by {(one - two).abs().max():.2g}")
