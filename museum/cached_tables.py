"""Rotary embeddings that keep the rotations of an earlier call: 2 correct, 2 with bugs of what they are kept by."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from packproof.museum.rotary import products
from packproof.museum.rows import sequence_of_rows

Key = tuple[Any, ...]

_rotations: dict[Key, tuple[Tensor, Tensor]] = {}


def _content(x: Tensor | None) -> Key:
    """The values of a tensor, as a key."""
    return () if x is None else (tuple(x.shape), x.dtype, x.detach().double().numpy().tobytes())


def _rotation_of_rows(table: Tensor, neutral: float, cu_seqlens: Tensor, offsets: Tensor | None, rows: int) -> Tensor:
    """(t, 1, r) in fp32 or fp64: each token's row of the table, `neutral` at negative positions and in slack."""
    row = torch.arange(int(cu_seqlens[-1]), device=table.device)
    sequence = sequence_of_rows(cu_seqlens.long(), row)
    position = row - cu_seqlens.long()[sequence]
    position = position if offsets is None else position + offsets.long()[sequence]
    wide = torch.promote_types(table.dtype, torch.float32)
    rotation = torch.full((rows, 1, table.shape[1]), neutral, dtype=wide, device=table.device)
    is_rotated = position >= 0
    rotation[row[is_rotated], 0] = table[position[is_rotated]].to(wide)
    return rotation


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, rows: int) -> Tensor:
    """x (t, h, k) with its first pairs rotated, zeros from `rows` on."""
    wide, r = torch.promote_types(x.dtype, torch.float32), cos.shape[-1]
    inside = (torch.arange(len(x), device=x.device) < rows)[:, None, None]
    x = torch.where(inside, x, 0)
    a, b = (x[..., i * r : (i + 1) * r].to(wide) for i in range(2))
    return torch.cat([*(y.to(x.dtype) for y in products(a, b, cos, sin)), x[..., 2 * r :]], -1)


def rope(
    x: Tensor, cos: Tensor, sin: Tensor, *, cu_seqlens: Tensor, offsets: Tensor | None = None, bug: str = ""
) -> Tensor:
    """Op `rope`; the rotations are kept by all that they follow from, but for the named bug."""
    key: Key = (*map(_content, (cos, sin, cu_seqlens, offsets)), len(x), bug)
    if bug == "kept_without_offsets":
        key = (*map(_content, (cos, sin, cu_seqlens)), offsets is None, len(x), bug)
    with torch.no_grad(), torch.inference_mode(mode=bug == "of_inference_mode" and torch.is_inference_mode_enabled()):
        if key not in _rotations:
            places = cu_seqlens, offsets, len(x)
            _rotations[key] = (_rotation_of_rows(cos, 1, *places), _rotation_of_rows(sin, 0, *places))
    return _rotate(x, *_rotations[key], int(cu_seqlens[-1]))


kept_without_offsets = partial(rope, bug="kept_without_offsets")
of_inference_mode = partial(rope, bug="of_inference_mode")
