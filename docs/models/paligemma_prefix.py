"""paligemma: the prefixes of packed documents are one block of tokens that see each other, whatever positions say."""

import torch
from transformers import PaliGemmaConfig, PaliGemmaForConditionalGeneration

tower = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
text = {**tower, "model_type": "gemma", "num_key_value_heads": 2, "vocab_size": 64, "head_dim": 16}
vision = {**tower, "model_type": "siglip_vision_model", "image_size": 8, "patch_size": 4, "projection_dim": 64}
config = PaliGemmaConfig(text_config=text, vision_config=vision, projection_dim=64, image_token_id=60)
model = PaliGemmaForConditionalGeneration(config).eval()
document = torch.tensor([60, 60, 60, 60, 5, 6, 7])  # the prefix: an image of 4 tokens and a word
types, positions = torch.tensor([0, 0, 0, 0, 0, 1, 1]), torch.arange(7)
ids, told = document.repeat(1, 2), {"position_ids": positions.repeat(1, 2), "use_cache": False}
pixels = torch.randn(2, 3, 8, 8)
other = torch.cat([torch.randn(1, 3, 8, 8), pixels[1:]])  # another first image, the same second one
for name, kinds in (("no token_type_ids", None), ("token_type_ids", types.repeat(1, 2))):
    with torch.no_grad():
        one, two = (model(ids, pixel_values=x, token_type_ids=kinds, **told).logits[0, 7:] for x in (pixels, other))
    print(f"{name}: the second document's logits move by {(one - two).abs().max():.2g}")
