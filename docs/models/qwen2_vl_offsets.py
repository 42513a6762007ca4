"""qwen2_vl: cu_seqlens of the text, as kernels of linear attention call it, become those of the images in the tower."""

import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64}
tower = {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "patch_size": 4}
text = {**sizes, "num_attention_heads": 4, "num_key_value_heads": 2}
model = Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=tower)).eval()
pixels, grid = torch.randn(2, 8, 96), torch.tensor([[1, 2, 4]] * 2)  # two images of 2 x 4 patches
other = torch.cat([torch.randn(1, 8, 96), pixels[1:]])  # another first image, the same second one
documents = torch.tensor([0, 4, 16], dtype=torch.int32)  # a row of 16 tokens, as many as both images have patches
for name, told in (("no cu_seqlens", {}), ("cu_seqlens of the text", {"cu_seqlens": documents})):
    with torch.no_grad():
        call = {"image_grid_thw": grid, **told}
        one, two = (model.model.get_image_features(x.flatten(0, 1), **call).pooler_output[1] for x in (pixels, other))
    print(f"{name}: the second image's features move by {(one - two).abs().max():.2g}")
