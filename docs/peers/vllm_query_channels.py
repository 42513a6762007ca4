"""vLLM: unified attention reads queries as if channels were next to each other."""

import torch
from vllm.v1.attention.ops.triton_unified_attention import unified_attention

TOKENS, HEADS, WIDTH, PAGE = 4, 2, 16, 16
generator = torch.Generator(device="cuda").manual_seed(0)


def draw(*shape):
    return torch.randn(shape, generator=generator, device="cuda").half()


def integers(*values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


q, k, v = draw(TOKENS, HEADS, WIDTH), draw(1, PAGE, HEADS, WIDTH), draw(1, PAGE, HEADS, WIDTH)


def attend(q):
    y = torch.zeros(TOKENS, HEADS, WIDTH, dtype=q.dtype, device="cuda")
    options = {"q_descale": None, "k_descale": None, "v_descale": None}
    scale, window = WIDTH**-0.5, (-1, -1)
    lengths = integers(0, TOKENS), TOKENS, integers(TOKENS), TOKENS
    unified_attention(q, k, v, y, *lengths, scale, True, window, integers(0)[None], 0.0, **options)
    return y.float()


want = attend(q)
for name, other in {
    "heads before tokens": q.transpose(0, 1).contiguous().transpose(0, 1),
    "channels before heads": q.mT.contiguous().mT,
}.items():
    print(f"{name}: outputs of up to {want.abs().max():.2f} are off by up to {(attend(other) - want).abs().max():.2f}")
