"""vLLM: keys whose heads or channels are not next to each other are written into the cache as other keys."""

import torch
from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash

TOKENS, HEADS, WIDTH, PAGE = 4, 2, 8, 16
one = torch.ones((), device="cuda")
slots = torch.arange(TOKENS, device="cuda")
rows = torch.arange(2.0 * TOKENS * HEADS * WIDTH, device="cuda")


def write(k, v):
    caches = torch.zeros(2, 1, PAGE, HEADS, WIDTH, device="cuda")
    triton_reshape_and_cache_flash(k, v, *caches, slots, "auto", one, one)
    return [int((cache[0, :TOKENS] != x).sum()) for cache, x in zip(caches, (k, v), strict=True)]


k, v = rows.view(2, TOKENS, HEADS, WIDTH)
of_heads = torch.stack([k, v]).movedim(2, 1).contiguous().movedim(1, 2)  # a projection that ends in (heads, tokens)
of_channels = torch.stack([k, v]).mT.contiguous().mT
sliced = torch.stack([k, v], 1).unbind(1)  # of one projection of k and v
for name, (key, value) in {
    "contiguous": (k, v),
    "slices of one projection": sliced,
    "heads before tokens": of_heads,
    "channels before heads": of_channels,
    "keys alone, channels before heads": (of_channels[0], v),
}.items():
    print(f"{name}: of {k.numel()} elements wrong keys, values {write(key, value)}")
