"""rope against complex multiplication, its isometry, and its messages."""

import cmath
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof.refs import ArgumentError, LayoutError, PackLayout, rope

LAYOUT = PackLayout((3, 0, 1, 4), slack=1)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tables(m: int, r: int) -> tuple[Tensor, Tensor]:
    angles = torch.outer(torch.arange(m, dtype=torch.float64), 10.0 ** -torch.arange(r, dtype=torch.float64))
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("k", "r"), [(6, 3), (6, 2), (7, 1), (4, 0)])
def test_each_pair_is_a_complex_number_rotated_by_its_position(interleaved: bool, k: int, r: int) -> None:
    x = randn(LAYOUT.total_tokens, 2, k)
    y = rope(x, *tables(4, r), cu_seqlens=LAYOUT.cu_seqlens(), interleaved=interleaved)
    want = x.clone()
    want[LAYOUT.n_tokens :] = 0
    for rows in LAYOUT.slices:
        for position, token in enumerate(range(rows.start, rows.stop)):
            for i in range(r):
                a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + r)
                rotation = cmath.exp(1j * position * 10.0**-i)
                for h in range(2):
                    rotated = complex(x[token, h, a], x[token, h, b]) * rotation
                    want[token, h, a], want[token, h, b] = rotated.real, rotated.imag
    torch.testing.assert_close(y, want, rtol=1e-14, atol=1e-14)


def test_position_zero_is_the_identity_and_norms_stay() -> None:
    x = randn(LAYOUT.n_tokens, 3, 8)
    y = rope(x, *tables(4, 4), cu_seqlens=LAYOUT.cu_seqlens())
    starts = [rows.start for rows in LAYOUT.slices if rows.stop > rows.start]
    assert torch.equal(y[starts], x[starts])
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1), rtol=1e-14, atol=0)


def test_fp32_tables_serve_any_tokens() -> None:
    """bf16 tokens with fp32 tables are computed in fp32 and rounded once; fp64 tokens stay fp64."""
    cos, sin = (table.float() for table in tables(4, 2))
    x = randn(LAYOUT.total_tokens, 2, 4)
    call = {"cu_seqlens": LAYOUT.cu_seqlens()}
    low = x.bfloat16()
    assert torch.equal(rope(low, cos, sin, **call), rope(low.float(), cos, sin, **call).bfloat16())
    assert torch.equal(rope(x, cos, sin, **call), rope(x, cos.double(), sin.double(), **call))


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_sequence_starts_at_its_position(interleaved: bool) -> None:
    """It is rotated as the last tokens of a longer one, whose first tokens a cache has already."""
    longer, layout = PackLayout((5, 2, 2, 4)), PackLayout((3, 0, 1, 4), slack=1)
    x, skipped = randn(longer.n_tokens, 2, 7), (2, 2, 1, 0)
    late = [torch.arange(rows.start + n, rows.stop) for rows, n in zip(longer.slices, skipped, strict=True)]
    call: dict[str, Any] = {"interleaved": interleaved}
    whole = rope(x, *tables(6, 3), cu_seqlens=longer.cu_seqlens(), **call)
    tokens = torch.cat([x[torch.cat(late)], x[:1]])
    for kind in (torch.int32, torch.int64):
        offsets = torch.tensor(skipped, dtype=kind)
        y = rope(tokens, *tables(6, 3), cu_seqlens=layout.cu_seqlens(), offsets=offsets, **call)
        assert torch.equal(y[:-1], whole[torch.cat(late)])
        assert not y[-1].any()


def test_tokens_before_position_zero_are_padding() -> None:
    """They stay as they are, and those after them have the positions of a sequence without padding."""
    x, cu_seqlens = randn(7, 2, 6), torch.tensor([0, 5, 7])
    y = rope(x, *tables(3, 2), cu_seqlens=cu_seqlens, offsets=torch.tensor([-2, -9]))
    assert torch.equal(y[[0, 1, 5, 6]], x[[0, 1, 5, 6]])
    assert torch.equal(y[2:5], rope(x[2:5], *tables(3, 2), cu_seqlens=torch.tensor([0, 3])))


LISTED = "    x                float32 (5, 2, 6)\n    cos              float32 (5, 3)\n"
MESSAGES = {
    "table too short": (
        {"cos": torch.zeros(4, 3), "sin": torch.zeros(4, 3)},
        "rope: cos has 4 positions (axis m) but the longest sequence has 5 tokens\n"
        "    Make cos and sin one row per position of the longest sequence.",
    ),
    "too many pairs": (
        {"cos": torch.zeros(5, 4), "sin": torch.zeros(5, 4)},
        "rope: cos rotates 2 x 4 channels (axis r) but x has 6 (axis k)",
    ),
    "tables of two shapes": (
        {"sin": torch.zeros(5, 2)},
        f"rope: sin has 2 rotated pairs (axis r) but cos has 3\n{LISTED}"
        "    sin              float32 (5, 2)\n    cu_seqlens       int32 (2,)",
    ),
    "table dtype": (
        {"sin": torch.zeros(5, 3, dtype=torch.float64)},
        f"rope: sin is float64 but float32 was expected with float32 x\n{LISTED}    sin              float64 (5, 3)",
    ),
    "a position past the table": (
        {"offsets": torch.tensor([1])},
        "rope: cos has 5 positions (axis m) but sequence 0 starts at position 1 and has 5 tokens\n"
        "    Make cos and sin one row per position: 6 of them.",
    ),
    "offsets of floats": (
        {"offsets": torch.zeros(1)},
        f"rope: offsets is float32 but int32 or int64 was expected\n{LISTED}"
        "    sin              float32 (5, 3)\n    offsets          float32 (1,)",
    ),
    "an offset for each token": (
        {"offsets": torch.zeros(5, dtype=torch.int64)},
        f"rope: offsets has 5 sequences (axis s) but cu_seqlens has 1\n{LISTED}"
        "    sin              float32 (5, 3)\n    offsets          int64 (5,)\n    cu_seqlens       int32 (2,)",
    ),
    "interleaved": ({"interleaved": 1}, "rope: interleaved is 1 but False or True was expected"),
}


@pytest.mark.parametrize(("wrong", "text"), MESSAGES.values(), ids=MESSAGES.keys())
def test_messages(wrong: dict[str, object], text: str) -> None:
    call = {
        "x": torch.zeros(5, 2, 6),
        "cos": torch.zeros(5, 3),
        "sin": torch.zeros(5, 3),
        "cu_seqlens": torch.tensor([0, 5], dtype=torch.int32),
    } | wrong
    with pytest.raises(ArgumentError) as caught:
        rope(**call)
    assert str(caught.value) == text


def test_offsets_past_the_tokens() -> None:
    with pytest.raises(LayoutError, match="rope: cu_seqlens ends at 6 but x has 5 tokens"):
        rope(torch.zeros(5, 2, 6, dtype=torch.float64), *tables(9, 3), cu_seqlens=torch.tensor([0, 6]))
