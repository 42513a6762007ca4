"""What can go wrong in a fast Hadamard transform is detected, each bug by the property that it breaks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.properties.declarations.promises import Promises
from packproof.refs.hadamard import sylvester
from tests.properties.test_vacuity import judge

PROMISES = Promises(grid="token", compute="fp32", deterministic=True, isolated=True)


def fast(
    x: Tensor, signs: Tensor | None = None, *, cu_seqlens: Tensor, scale: bool = True, after: bool = False,
    order: Callable[[Tensor], Tensor] = lambda H: H, straight: bool = False, stages: int = 0, mean: bool = False,
) -> Tensor:  # fmt: skip
    """By butterflies, in fp32; each option is a bug."""
    inside = torch.arange(len(x)) < cu_seqlens[-1]
    rows = torch.where(inside[:, None, None], x, 0).float()
    factors = torch.ones(x.shape[-1]) if signs is None else signs.float()
    if straight:  # the signs are missing in the gradient
        rows = rows + (rows * factors - rows).detach()
    elif not after:
        rows = rows * factors
    k, levels = x.shape[-1], x.shape[-1].bit_length() - 1
    for bit in range(levels - stages):
        pairs = rows.unflatten(-1, (k >> bit + 1, 2, 1 << bit))
        low, high = pairs.unbind(-2)
        rows = torch.stack([low + high, low - high], -2).flatten(-3)
    rows = order(rows) * (factors if after else 1) * (k**-0.5 if scale else 1)
    return (rows - rows.mean(0) * 2**-10 if mean and len(rows) else rows).to(x.dtype)


def sequency(rows: Tensor) -> Tensor:
    """Columns by their number of changes of sign, as Walsh ordered them."""
    changes = (sylvester(rows.shape[-1]).diff(dim=0) != 0).sum(0)
    return rows[..., changes.argsort()]


BUGS: dict[str, tuple[str, dict[str, Any]]] = {
    "no scale": ("reference", {"scale": False}),
    "signs after the transform": ("reference", {"after": True}),
    "sequency order": ("reference", {"order": sequency}),
    "signs missing in the gradient": ("reference", {"straight": True}),
    "one stage too few": ("reference", {"stages": 1}),
    "centred over the pack": ("packing", {"mean": True}),
}


@pytest.mark.parametrize("name", BUGS)
def test_it_is_detected(name: str) -> None:
    law, bug = BUGS[name]

    def kernel(x: Tensor, signs: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
        return fast(x, signs, cu_seqlens=cu_seqlens, **bug)

    assert judge(law, "hadamard", kernel, PROMISES) is not None


@pytest.mark.parametrize("law", ["reference", "packing", "isolation"])
def test_butterflies_pass(law: str) -> None:
    def kernel(x: Tensor, signs: Tensor | None = None, *, cu_seqlens: Tensor) -> Tensor:
        return fast(x, signs, cu_seqlens=cu_seqlens)

    assert judge(law, "hadamard", kernel, PROMISES) is None


def test_rotating_after_the_transform_is_detected() -> None:
    def kernel(
        x: Tensor, cos: Tensor, sin: Tensor, signs: Tensor | None = None, *, cu_seqlens: Tensor,
        offsets: Tensor | None = None, interleaved: bool = False,
    ) -> Tensor:  # fmt: skip
        call: dict[str, Any] = {"cu_seqlens": cu_seqlens, "offsets": offsets, "interleaved": interleaved}
        return refs.rope(refs.hadamard(x, signs, cu_seqlens=cu_seqlens), cos, sin, **call)

    assert judge("reference", "rope_hadamard", kernel, PROMISES) is not None
