"""For tests/models/test_modeling_base.py of flash-linear-attention: labels are shifted within documents."""

import pytest
import torch
from fla.models import GLAConfig, GLAForCausalLM
from fla.utils import device
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast

V = 64


class Embed(nn.Module):
    """In the place of the decoder: a token's hidden state is its embedding, so that labels alone can mix documents."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.embeddings = nn.Embedding(V, hidden_size)

    def forward(self, input_ids: torch.Tensor, **kwargs) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=self.embeddings(input_ids))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("lengths", [[5, 7], [1, 4, 1, 6]])
def test_loss_of_a_pack_is_that_of_its_documents(lengths: list[int], fused: bool):
    torch.manual_seed(42)
    config = GLAConfig(
        hidden_size=32, num_heads=2, num_hidden_layers=1, vocab_size=V, intermediate_size=32,
        fuse_cross_entropy=False, fuse_linear_cross_entropy=fused,
    )  # fmt: skip
    model = GLAForCausalLM(config)
    model.set_decoder(Embed(32))
    model = model.to(device)
    ids = torch.randint(V, (1, sum(lengths)), device=device)
    cu_seqlens = torch.tensor([0, *lengths], device=device).cumsum(0)

    counts = [length - 1 for length in lengths]
    losses = [model(x, labels=x).loss * n for x, n in zip(ids.split(lengths, 1), counts, strict=True) if n]
    packed = model(ids, labels=ids, cu_seqlens=cu_seqlens).loss

    torch.testing.assert_close(packed, sum(losses) / sum(counts), atol=1e-5, rtol=1e-5)
