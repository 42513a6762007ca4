"""lfm3_vl: attention isolates by position_ids, the short convolution beside it runs on into the next document."""

import torch
from transformers import Lfm3VlConfig, Lfm3VlForConditionalGeneration

sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
heads = {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64, "pad_token_id": 63}
text = {"model_type": "lfm3", **sizes, **heads, "layer_types": ["conv", "full_attention"]}
tower = {**sizes, "num_key_value_heads": 4, "patch_size": 4, "layer_types": ["conv", "full_attention"]}
more = {"image_token_id": 60, "video_token_id": 61, "projector_hidden_size": 64}
model = Lfm3VlForConditionalGeneration(Lfm3VlConfig(text_config=text, vision_config=tower, **more)).eval()
document, grid = torch.tensor([[5, 60, 60, 60, 60]]), torch.tensor([[1, 4, 4]] * 2)  # an image of 2 x 2 tokens
told = {"position_ids": torch.arange(5).repeat(1, 2), "image_grid_thw": grid, "use_cache": False}
pixels = torch.randn(2, 16, 96)
other = torch.cat([torch.randn(1, 16, 96), pixels[1:]])  # another first image, the same second one
ids = document.repeat(1, 2)
with torch.no_grad():
    one, two = (model(ids, pixel_values=x.flatten(0, 1), **told).logits[0, 5:] for x in (pixels, other))
print(f"the second document's logits move by {(one - two).abs().max():.2g}")
