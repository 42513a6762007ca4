"""cohere_compass: a row of text positions makes the mask of sdpa, and does not reach flash attention."""

import torch
from transformers import AttentionInterface, CohereCompassTextConfig
from transformers.models.cohere_compass.modeling_cohere_compass import CohereCompassTextModel

told = {}


def attention(_module, query, *_, **kwargs):
    """What flash attention reads the boundaries from, whatever it computes."""
    told.update({name: kwargs.get(name) for name in ("position_ids", "cu_seq_lens_q")})
    return query.transpose(1, 2), None


AttentionInterface.register("recorded", attention)
rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
layers = {"layer_types": ["full_attention"], "rope_parameters": {"full_attention": rope}}
sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 64, "head_dim": 16}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_implementation": "recorded"}
config = CohereCompassTextConfig(**sizes, **heads, **layers)
model, ids = CohereCompassTextModel(config).eval(), torch.randint(3, 60, (1, 12))
row, offsets = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]]), torch.tensor([0, 5, 12], dtype=torch.int32)
for flash in ({}, {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": 7, "max_length_k": 7}):
    model(ids, position_ids=row.expand(4, 1, -1), use_cache=False, **flash)
    reached = ", ".join(argument for argument, value in told.items() if value is not None) or "nothing"
    print(f"position_ids (4, 1, t){', cu_seq_lens' if flash else ''}: {reached} reaches attention")
