"""jamba: nothing that a padding-free collator sends reaches the scan and the convolution of its Mamba layers."""

import torch
from transformers import JambaConfig, JambaForCausalLM

sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64, "num_experts": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
model = JambaForCausalLM(JambaConfig(**sizes, **heads, mamba_dt_rank=4, use_mamba_kernels=False)).eval()
ids, position_ids = torch.randint(3, 64, (1, 12)), torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
cu_seqlens, seq_idx = torch.tensor([0, 5, 12], dtype=torch.int32), torch.tensor([[0] * 5 + [1] * 7], dtype=torch.int32)
other = torch.cat([(ids[:, :5] + 7) % 64, ids[:, 5:]], 1)  # another first document, the same second one
told = {"position_ids": position_ids, "cu_seq_lens_q": cu_seqlens, "cu_seq_lens_k": cu_seqlens, "seq_idx": seq_idx}
with torch.no_grad():
    one, two = (model(x, **told, use_cache=False).logits[0, 5:] for x in (ids, other))
print(f"the second document's logits move by {(one - two).abs().max():.2g}")
