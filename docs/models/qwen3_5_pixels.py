"""qwen3_5: attention isolates by positions of text and axes, the gated delta rule beside it lets pixels through."""

import torch
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3], "partial_rotary_factor": 1.0}
sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64, "rope_parameters": rope}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "linear_num_key_heads": 2}
layers = {"layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4}
tower = {"depth": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "patch_size": 4, "out_hidden_size": 64}
more = {"image_token_id": 60, "video_token_id": 61}
config = Qwen3_5Config(text_config={**sizes, **heads, **layers}, vision_config=tower, **more)
model = Qwen3_5ForConditionalGeneration(config).eval()
document, grid = (
    torch.tensor([[5, 60, 60, 60, 60, 6]]),
    torch.tensor([[1, 4, 4]]),
)  # an image of 2 x 2 tokens
kinds, pixels = (document == 60).int(), torch.randn(2, 16, 96)
other = torch.cat([torch.randn(1, 16, 96), pixels[1:]])  # another first image, the same second one
axes, _ = model.model.get_rope_index(document, mm_token_type_ids=kinds, image_grid_thw=grid)
told = {"position_ids": torch.cat([torch.arange(6).expand(1, 1, 6), axes]).repeat(1, 1, 2), "use_cache": False}
ids, both = document.repeat(1, 2), {"mm_token_type_ids": kinds.repeat(1, 2), "image_grid_thw": grid.repeat(2, 1)}
with torch.no_grad():
    one, two = (model(ids, pixel_values=x.flatten(0, 1), **both, **told).logits[0, 6:] for x in (pixels, other))
print(f"the second document's logits move by {(one - two).abs().max():.2g}")
