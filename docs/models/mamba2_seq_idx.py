"""mamba2: seq_idx and cu_seq_lens are taken without an error, and dropped: the state runs on into the next document."""

import torch
from transformers import Mamba2Config, Mamba2ForCausalLM

sizes = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 64, "num_heads": 8, "head_dim": 16, "n_groups": 2}
model = Mamba2ForCausalLM(Mamba2Config(**sizes, state_size=16, chunk_size=8)).eval()
ids, seq_idx = torch.randint(3, 64, (1, 12)), torch.tensor([[0] * 5 + [1] * 7], dtype=torch.int32)
cu_seqlens = torch.tensor([0, 5, 12], dtype=torch.int32)
other = torch.cat([(ids[:, :5] + 7) % 64, ids[:, 5:]], 1)  # another first document, the same second one
told = {"seq_idx": seq_idx, "cu_seq_lens_q": cu_seqlens, "cu_seq_lens_k": cu_seqlens, "use_cache": False}
with torch.no_grad():
    one, two = (model(x, **told).logits[0, 5:] for x in (ids, other))
print(f"the second document's logits move by {(one - two).abs().max():.2g}")
