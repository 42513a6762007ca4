"""hadamard by the definition of its matrix, its laws, and its messages."""

import pytest
import torch

from packproof.refs import ArgumentError, PackLayout, hadamard, random_signs, rope, rope_hadamard

LAYOUT = PackLayout((3, 0, 1, 4), slack=1)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("k", [1, 2, 8, 32])
def test_each_channel_is_a_sum_with_the_signs_of_sylvesters_matrix(k: int) -> None:
    """Element (i, j) is -1 to the number of bits that i and j share."""
    x, signs = randn(LAYOUT.total_tokens, 2, k), random_signs(k, seed=1).double()
    y = hadamard(x, signs, cu_seqlens=LAYOUT.cu_seqlens())
    for j in range(k):
        terms = sum(x[..., i] * signs[i] * (-1) ** (i & j).bit_count() for i in range(k))
        torch.testing.assert_close(y[: LAYOUT.n_tokens, :, j], terms[: LAYOUT.n_tokens] / k**0.5)
    assert not y[LAYOUT.n_tokens :].any()


def test_it_keeps_norms_and_scalar_products_and_undoes_itself() -> None:
    x, other, signs, cu_seqlens = randn(4, 2, 16), randn(4, 2, 16), random_signs(16, 3), torch.tensor([0, 4])
    y, z = (hadamard(one, signs, cu_seqlens=cu_seqlens) for one in (x, other.flip(0)))
    torch.testing.assert_close((y * z).sum(-1), (x * other.flip(0)).sum(-1))
    torch.testing.assert_close(hadamard(y, cu_seqlens=cu_seqlens) * signs, x)


def test_signs_follow_from_a_seed() -> None:
    signs = random_signs(4096, seed=7)
    assert torch.equal(signs, random_signs(4096, seed=7))
    assert torch.equal(signs.abs(), torch.ones(4096))
    assert abs(signs.mean()) < 0.1
    assert not torch.equal(signs, random_signs(4096, seed=8))


def test_rope_hadamard_rounds_once() -> None:
    x, angles, signs = randn(8, 2, 8), randn(4, 4), random_signs(8, 0)
    call = {"cu_seqlens": torch.tensor([0, 3, 4, 8])}
    for tokens in (x, x.bfloat16()):
        cos, sin = angles.cos().to(tokens.dtype), angles.sin().to(tokens.dtype)
        wide = torch.promote_types(tokens.dtype, torch.float32)
        turned = rope(tokens.to(wide), cos.to(wide), sin.to(wide), **call)
        want = hadamard(turned, signs, **call).to(tokens.dtype) if wide == torch.float32 else None
        want = hadamard(turned, signs.to(wide), **call) if want is None else want
        assert torch.equal(rope_hadamard(tokens, cos, sin, signs, **call), want)


def test_messages() -> None:
    with pytest.raises(ArgumentError) as caught:
        hadamard(torch.zeros(5, 2, 6), cu_seqlens=torch.tensor([0, 5]))
    assert str(caught.value) == (
        "hadamard: x has 6 channels per head (axis k) but a power of two was expected\n"
        "    Append zeros, up to 8 of them."
    )
    with pytest.raises(ArgumentError, match=r"random_signs: k is -1; 0 or more was expected"):
        random_signs(-1, seed=0)
