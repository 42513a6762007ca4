"""For tests/models/opt/test_modeling_opt.py of transformers: documents of a pack are isolated by position_ids."""

import unittest

import torch
from transformers import OPTConfig, OPTForCausalLM


class OPTPackedTest(unittest.TestCase):
    @torch.no_grad()
    def check_packed_documents(self, implementation):
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = OPTConfig(vocab_size=64, word_embed_proj_dim=16, attn_implementation=implementation, **sizes)
        model = OPTForCausalLM(config).eval()
        first, other, second = torch.randint(3, 64, (1, 5)), torch.randint(3, 64, (1, 5)), torch.randint(3, 64, (1, 7))
        position_ids = torch.cat([torch.arange(5), torch.arange(7)])[None]

        def packed(document):
            ids = torch.cat([document, second], 1)
            return model(ids, position_ids=position_ids, use_cache=False).logits[:, 5:]

        alone = model(second, use_cache=False).logits
        torch.testing.assert_close(packed(first), packed(other))
        torch.testing.assert_close(packed(first), alone, atol=1e-5, rtol=1e-5)

    def test_packed_documents_eager(self):
        self.check_packed_documents("eager")

    def test_packed_documents_sdpa(self):
        self.check_packed_documents("sdpa")
