"""SGLang: attention reads queries as if channels were next to each other, in the step of a server and in a prefill."""

import torch
from sglang.srt.layers.attention.triton_ops.decode_attention import decode_attention_fwd
from sglang.srt.layers.attention.triton_ops.extend_attention import extend_attention_fwd_unified

TOKENS, HEADS, WIDTH, KEYS, PARTS = 2, 2, 16, 3, 4
generator = torch.Generator(device="cuda").manual_seed(0)


def draw(*shape):
    return torch.randn(shape, generator=generator, device="cuda").half()


def integers(*values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


q, k, v = draw(TOKENS, HEADS, WIDTH), draw(TOKENS * KEYS, HEADS, WIDTH), draw(TOKENS * KEYS, HEADS, WIDTH)
ends, rows = integers(*range(0, TOKENS * KEYS + 1, KEYS)), torch.arange(TOKENS * KEYS, device="cuda")


def decode(q):
    y = torch.zeros_like(v[:TOKENS])
    parts = torch.empty(TOKENS, HEADS, PARTS, WIDTH, device="cuda")
    counts = integers(*[PARTS] * TOKENS)
    decode_attention_fwd(q, k, v, y, ends, rows, parts, parts[..., 0].clone(), counts, PARTS, WIDTH**-0.5, 1.0, 1.0)
    return y


def extend(q):
    y = torch.zeros_like(v[:TOKENS])
    prefixes = integers(*[KEYS - 1] * TOKENS)
    extend_attention_fwd_unified(q, y, k, v, 1.0, 1.0, integers(*range(TOKENS + 1)), ends, rows, prefixes, 1)
    return y


apart = q.mT.contiguous().mT  # the same queries; channels are apart in memory
for name, step in {"decode": decode, "extend": extend}.items():
    want, got = step(q).float(), step(apart).float()
    print(f"{name}: outputs of up to {want.abs().max():.2f} are off by up to {(got - want).abs().max():.2f}")
