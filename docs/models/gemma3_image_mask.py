"""gemma3: layers with a window look for the image of a packed document at the rows of the first document."""

import torch
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64, "head_dim": 16}
tower = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
text = {**sizes, **layers, "num_attention_heads": 4, "num_key_value_heads": 2}
vision = {"model_type": "siglip_vision_model", **tower, "image_size": 16, "patch_size": 4}
config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_id=60)
model = Gemma3ForConditionalGeneration(config).eval()
torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)  # zeros let no image through
image, words = [60] * 4, [5, 6, 7]
document, pixels = torch.tensor([[8, *image, 9]]), torch.randn(1, 3, 16, 16)
with torch.no_grad():
    alone = model(document, token_type_ids=(document == 60).int(), pixel_values=pixels).logits[0]
    for first in ([], words, [8, *image, 9]):  # what is packed before the document
        ids = torch.cat([torch.tensor([first], dtype=torch.int64), document], 1)
        told = {"position_ids": torch.cat([torch.arange(len(first)), torch.arange(6)])[None], "use_cache": False}
        images = pixels.repeat(2 if 60 in first else 1, 1, 1, 1)
        packed = model(ids, token_type_ids=(ids == 60).int(), pixel_values=images, **told).logits[0, len(first) :]
        print(f"after {first}: the document's logits are off by {(packed - alone).abs().max():.2g}")
