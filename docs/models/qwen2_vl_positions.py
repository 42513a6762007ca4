"""qwen2_vl: positions of one axis or of three make no mask, and pixels reach the next document; a row of text does."""

import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64, "rope_parameters": rope}
tower = {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "patch_size": 4}
text = {**sizes, "num_attention_heads": 4, "num_key_value_heads": 2}
config = Qwen2VLConfig(text_config=text, vision_config=tower, image_token_id=60, video_token_id=61)
model = Qwen2VLForConditionalGeneration(config).eval()
document, grid = (
    torch.tensor([[5, 60, 60, 60, 60, 6]]),
    torch.tensor([[1, 4, 4]]),
)  # an image of 2 x 2 tokens
kinds = (document == 60).int()
axes, _ = model.model.get_rope_index(document, mm_token_type_ids=kinds, image_grid_thw=grid)
text_row = torch.arange(6).expand(1, 1, 6)
told = {"(1, t)": text_row[0], "(3, 1, t)": axes, "(4, 1, t)": torch.cat([text_row, axes])}  # of one document
ids, both = document.repeat(1, 2), {"mm_token_type_ids": kinds.repeat(1, 2), "image_grid_thw": grid.repeat(2, 1)}
pixels = torch.randn(2, 16, 96)
other = torch.cat([torch.randn(1, 16, 96), pixels[1:]])  # another first image, the same second one
for name, positions in told.items():
    with torch.no_grad():
        call = {**both, "position_ids": torch.cat([positions] * 2, -1), "use_cache": False}
        one, two = (model(ids, pixel_values=x.flatten(0, 1), **call).logits[0, 6:] for x in (pixels, other))
    print(f"position_ids {name}: the second document's logits move by {(one - two).abs().max():.2g}")
