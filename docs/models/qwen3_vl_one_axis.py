"""qwen3_vl: positions of one axis isolate documents, and are not those that the model gives the tokens of an image."""

import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64, "rope_parameters": rope}
tower = {"depth": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "patch_size": 4, "out_hidden_size": 64}
text = {**sizes, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
more = {"image_token_id": 60, "video_token_id": 61}
tower |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=tower, **more)).eval()
document, grid = (
    torch.tensor([[5, 60, 60, 60, 60, 6]]),
    torch.tensor([[1, 4, 4]]),
)  # an image of 2 x 2 tokens
kinds, pixels = (document == 60).int(), torch.randn(2, 16, 96)
axes, _ = model.model.get_rope_index(document, mm_token_type_ids=kinds, image_grid_thw=grid)
text_row = torch.arange(6).expand(1, 1, 6)
told = {"(1, t)": text_row[0], "(4, 1, t)": torch.cat([text_row, axes])}  # of one document
ids, both = document.repeat(1, 2), {"mm_token_type_ids": kinds.repeat(1, 2), "image_grid_thw": grid.repeat(2, 1)}
with torch.no_grad():
    alone = model(document, mm_token_type_ids=kinds, image_grid_thw=grid, pixel_values=pixels[1]).logits[0]
    for name, positions in told.items():
        call = {**both, "position_ids": torch.cat([positions] * 2, -1), "use_cache": False}
        packed = model(ids, pixel_values=pixels.flatten(0, 1), **call).logits[0, 6:]
        print(f"position_ids {name}: the second document's logits are off by {(packed - alone).abs().max():.2g}")
