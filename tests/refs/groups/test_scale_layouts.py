"""Scales in padded and swizzled layouts: each at its place, by its formula, and padding that is NaN."""

import pytest
import torch

from packproof.refs import (
    ArgumentError,
    LayoutError,
    PackLayout,
    pad_scales,
    swizzle_scales,
    unpad_scales,
    unswizzle_scales,
)

LAYOUT = PackLayout((5, 0, 128, 1, 130), slack=3)


@pytest.mark.parametrize("multiple", [32, 128])
def test_each_group_begins_at_a_multiple(multiple: int) -> None:
    scales = torch.rand(LAYOUT.total_tokens, 6)
    padded = pad_scales(scales, cu_seqlens=LAYOUT.cu_seqlens(), rows=multiple)
    assert padded.shape[1] == 8
    start = 0
    for rows in LAYOUT.slices:
        end = start + -(-(rows.stop - rows.start) // multiple) * multiple
        group = padded[start:end]
        assert torch.equal(group[: rows.stop - rows.start, :6], scales[rows])
        assert group[rows.stop - rows.start :].isnan().all()
        start = end
    assert start == len(padded)
    assert padded[:, 6:].isnan().all()
    restored = unpad_scales(padded, scales, cu_seqlens=LAYOUT.cu_seqlens(), rows=multiple)
    assert torch.equal(restored[: LAYOUT.n_tokens], scales[: LAYOUT.n_tokens])
    assert not restored[LAYOUT.n_tokens :].any()


def test_padding_is_nan_in_bytes() -> None:
    padded = pad_scales(torch.ones(1, 1), cu_seqlens=torch.tensor([0, 1]), rows=2)
    assert padded.to(torch.float8_e8m0fnu).view(torch.uint8).flatten().tolist() == [127, *[255] * 7]
    assert padded.to(torch.float8_e4m3fn).view(torch.uint8).flatten().tolist()[1:] == [127] * 7


def test_each_scale_of_a_tile_has_its_place() -> None:
    padded = torch.arange(256 * 12).view(256, 12)
    swizzled = swizzle_scales(padded)
    for row, column in ((0, 0), (1, 0), (31, 3), (32, 0), (127, 3), (128, 0), (200, 11), (5, 7)):
        tile = row // 128 * 3 + column // 4
        assert swizzled[512 * tile + row % 32 * 16 + row % 128 // 32 * 4 + column % 4] == padded[row, column]
    assert torch.equal(unswizzle_scales(swizzled, 12), padded)


def test_messages() -> None:
    scales, cu_seqlens = torch.ones(3, 1), torch.tensor([0, 3])
    with pytest.raises(ArgumentError, match="pad_scales: rows is 0; 1 or more was expected"):
        pad_scales(scales, cu_seqlens=cu_seqlens, rows=0)
    with pytest.raises(LayoutError, match=r"unpad_scales: padded is \(3, 4\) but the groups need 128 rows"):
        unpad_scales(torch.ones(3, 4), scales, cu_seqlens=cu_seqlens)
    with pytest.raises(ArgumentError, match=r"swizzle_scales: padded is \(3, 4\) but multiples of 128 rows"):
        swizzle_scales(torch.ones(3, 4))
    with pytest.raises(ArgumentError, match=r"unswizzle_scales: swizzled is .* for 6 columns"):
        unswizzle_scales(torch.ones(512), 6)
