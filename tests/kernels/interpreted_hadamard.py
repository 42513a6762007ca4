"""The kernels of hadamard and of rope_hadamard in the interpreter."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.base.errors import ArgumentError
from packproof.kernels.hadamard import hadamard
from packproof.kernels.rope_hadamard import rope_hadamard
from tests.kernels.cases import LAYOUTS, close, normal, offsets, same_bits, scattered, vjp

HEADS, K, SIGNS = 3, 16, refs.random_signs(16, seed=1)  # several tiles of channels, a ragged group of heads
POSITIONS = 33


def tables(r: int = K // 2) -> dict[str, Tensor]:
    angles = normal(POSITIONS, r)
    return {"cos": angles.cos(), "sin": angles.sin()}


def test_matches_the_reference() -> None:
    for lengths in LAYOUTS:
        inputs, dy = {"x": normal(sum(lengths), HEADS, K)}, [normal(sum(lengths), HEADS, K)]
        options: dict[str, Any] = {"signs": SIGNS, "cu_seqlens": offsets(lengths)}
        close(vjp(hadamard, inputs, dy, **options), vjp(refs.hadamard, inputs, dy, **options), 1e-6, f"{lengths}")
        options |= tables()
        wanted = vjp(refs.rope_hadamard, inputs, dy, **options)
        close(vjp(rope_hadamard, inputs, dy, **options), wanted, 1e-6, f"{lengths} rotated")


@pytest.mark.parametrize("k", [1, 2, 8, 64, 256])
def test_takes_every_head_dim(k: int) -> None:
    x, dy, options = normal(5, 2, k), [normal(5, 2, k)], {"signs": refs.random_signs(k, 0), "cu_seqlens": offsets([5])}
    close(vjp(hadamard, {"x": x}, dy, **options), vjp(refs.hadamard, {"x": x}, dy, **options), 2e-6, f"k={k}")


@pytest.mark.parametrize("form", [{"r": 5}, {"r": 8, "interleaved": True}, {"r": 8, "offsets": torch.tensor([3, -2])}])
def test_rotates_and_transforms_in_two_steps_where_it_cannot_in_one(form: dict[str, Any]) -> None:
    """bf16 is not rounded between."""
    x, dy = normal(9, HEADS, K).bfloat16(), [normal(9, HEADS, K).bfloat16()]
    options = {"signs": SIGNS, "cu_seqlens": offsets([5, 3])} | tables(form["r"])
    options |= {name: value for name, value in form.items() if name != "r"}
    close(vjp(rope_hadamard, {"x": x}, dy, **options), vjp(refs.rope_hadamard, {"x": x}, dy, **options), 2**-9, "")


def test_keeps_scalar_products() -> None:
    """Of rotated queries and keys: so attention may see the transformed ones."""
    q, k, options = normal(7, HEADS, K), normal(7, HEADS, K), {"cu_seqlens": offsets([7])} | tables()
    rotated = (refs.rope(q, **options) * refs.rope(k, **options)).sum(-1)
    options |= {"signs": SIGNS}
    torch.testing.assert_close((rope_hadamard(q, **options) * rope_hadamard(k, **options)).sum(-1), rotated)


def test_takes_any_strides_and_ignores_slack() -> None:
    for function, extra in ((hadamard, {}), (rope_hadamard, tables())):
        x, dy, slack = normal(20, HEADS, K), normal(20, HEADS, K), 3
        options: dict[str, Any] = {"signs": SIGNS, **extra}
        wanted = vjp(function, {"x": x}, [dy], cu_seqlens=offsets([16, 1]), **options)
        x[-slack:], dy[-slack:] = float("nan"), float("inf")
        loose = {name: scattered(value) for name, value in options.items()}
        heads_first = dy.transpose(0, 1).contiguous().transpose(0, 1)
        got = vjp(function, {"x": scattered(x)}, [heads_first], cu_seqlens=offsets([16, 1], torch.int64), **loose)
        for name, value in wanted.items():
            same_bits(got[name], value, name)
            assert not value[-slack:].any()


def test_does_not_overflow_between() -> None:
    x = torch.full((1, 1, K), 3e38 / K**0.5)
    assert hadamard(x, cu_seqlens=offsets([1])).isfinite().all()


def test_is_nan_past_the_tables_where_nothing_is_checked() -> None:
    options = {name: table[:2] for name, table in tables().items()}
    call = (normal(5, HEADS, K), options["cos"], options["sin"], SIGNS, offsets([4]), None, False, False)
    y = torch.ops.packproof.rope_hadamard(*call)
    assert y[2:4].isnan().all()
    assert y[:2].isfinite().all()
    assert not y[4].any()


@pytest.mark.proof
@pytest.mark.proof
def test_passes_opcheck_and_compiles_in_one_graph() -> None:
    x, options = normal(5, HEADS, K), {"signs": SIGNS, "cu_seqlens": offsets([3, 2])}
    torch.library.opcheck(
        torch.ops.packproof.hadamard.default, (x.clone().requires_grad_(), SIGNS, offsets([5]), False)
    )
    for function, extra in ((hadamard, {}), (rope_hadamard, tables())):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        same_bits(compiled(x, **options, **extra), function(x, **options, **extra), "compiled")


def refused(function: Callable[..., Any], text: str, **changed: Any) -> None:
    inputs: dict[str, Any] = {"x": normal(3, HEADS, K), "cu_seqlens": offsets([3])}
    inputs |= tables() if function is rope_hadamard else {}
    with pytest.raises(ArgumentError, match=re.escape(text)):
        function(**inputs | changed)


def test_refuses_wrong_arguments() -> None:
    for function in (hadamard, rope_hadamard):
        refused(function, "x has 512 channels per head (axis k) but at most 256 were", x=normal(3, 1, 512))
        refused(function, "x is float64 but float32, bfloat16 or float16", x=normal(3, 1, 8).double())
        refused(function, "signs has 8 channels per head (axis k) but x has 16", signs=SIGNS[:8])
        refused(
            function, "signs requires a gradient", x=normal(3, 1, K).requires_grad_(), signs=normal(K).requires_grad_()
        )
    refused(hadamard, "x has 12 channels per head (axis k) but a power of two was", x=normal(3, 1, 12))
    refused(rope_hadamard, "cos has 2 positions (axis m)", cos=normal(2, 8), sin=normal(2, 8))
    refused(rope_hadamard, "interleaved is 1 but", interleaved=1)
