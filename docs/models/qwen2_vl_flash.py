"""qwen2_vl: of positions, only a row of text ones reaches flash attention, which reads the boundaries from them."""

import torch
from transformers import AttentionInterface, Qwen2VLTextConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLTextModel

told = {}


def attention(_module, query, *_, **kwargs):
    """What flash attention reads the boundaries from, whatever it computes."""
    told.update({name: kwargs.get(name) for name in ("position_ids", "cu_seq_lens_q")})
    return query.transpose(1, 2), None


AttentionInterface.register("recorded", attention)
rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 64, "rope_parameters": rope}
config = Qwen2VLTextConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, attn_implementation="recorded")
model, ids = Qwen2VLTextModel(config).eval(), torch.randint(3, 60, (1, 12))
row, offsets = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]]), torch.tensor([0, 5, 12], dtype=torch.int32)
for name, positions in (("(1, t)", row), ("(3, 1, t)", row.expand(3, 1, -1)), ("(4, 1, t)", row.expand(4, 1, -1))):
    for flash in ({}, {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": 7, "max_length_k": 7}):
        model(ids, position_ids=positions, use_cache=False, **flash)
        reached = ", ".join(argument for argument, value in told.items() if value is not None) or "nothing"
        print(f"position_ids {name}{', cu_seq_lens' if flash else ''}: {reached} reaches attention")
