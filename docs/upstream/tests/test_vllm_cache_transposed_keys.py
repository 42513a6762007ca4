"""For tests/kernels/attention/test_cache.py of vLLM: keys and values whose heads are not contiguous in a token."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # vLLM then takes Triton without a driver
from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash

device = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("num_tokens, num_heads, head_size, block_size", [(5, 2, 16, 16), (3, 4, 8, 16)])
@pytest.mark.parametrize("transposed", [False, True])
def test_reshape_and_cache_flash_strides(num_tokens, num_heads, head_size, block_size, transposed, monkeypatch):
    if device == "cpu":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    torch.manual_seed(0)
    key, value = (torch.randn(num_heads, num_tokens, head_size, device=device).transpose(0, 1) for _ in range(2))
    key, value = (x if transposed else x.contiguous() for x in (key, value))
    key_cache, value_cache = (torch.zeros(2, block_size, num_heads, head_size, device=device) for _ in range(2))
    slots = torch.randperm(2 * block_size, device=device)[:num_tokens]

    triton_reshape_and_cache_flash(key, value, key_cache, value_cache, slots, "auto", None, None)

    for cache, tokens in ((key_cache, key), (value_cache, value)):
        expected = torch.zeros_like(cache)
        expected.view(-1, num_heads, head_size)[slots] = tokens
        torch.testing.assert_close(cache, expected)
