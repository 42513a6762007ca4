"""The kernel of rope in the interpreter."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.base.errors import ArgumentError
from packproof.kernels.rope import rope, rope_qk
from tests.kernels.cases import LAYOUTS, close, normal, offsets, same_bits, scattered, vjp

# two groups of heads, steps of two, two blocks of pairs and of the channels after them, each with a ragged one
H, K, R = 7, 15, 5


def tables(positions: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    angles = normal(positions, R, dtype=torch.float64)
    return {"cos": angles.cos().to(dtype), "sin": angles.sin().to(dtype)}


def test_matches_the_reference() -> None:
    for lengths in LAYOUTS:
        for interleaved in (False, True):
            inputs = {"x": normal(sum(lengths), H, K, dtype=torch.float64)}
            options = tables(max(lengths, default=0)) | {"cu_seqlens": offsets(lengths), "interleaved": interleaved}
            dy = [normal(*inputs["x"].shape, dtype=torch.float64)]
            wanted = vjp(refs.rope, inputs, dy, **options)
            close(vjp(rope, inputs, dy, **options), wanted, 1e-15, f"{lengths} interleaved={interleaved}")


def test_takes_any_strides_and_ignores_slack() -> None:
    x, dy, slack = normal(20, H, K), normal(20, H, K), 3
    options: dict[str, Any] = tables(16)
    wanted = vjp(rope, {"x": x}, [dy], cu_seqlens=offsets([16, 1]), **options)
    x[-slack:], dy[-slack:] = float("nan"), float("inf")
    loose = {name: scattered(value) for name, value in options.items()}
    heads_first = dy.transpose(0, 1).contiguous().transpose(0, 1)
    got = vjp(rope, {"x": scattered(x)}, [heads_first], cu_seqlens=offsets([16, 1], torch.int64), **loose)
    for name, value in wanted.items():
        same_bits(got[name], value, name)
        assert not value[-slack:].any()


def test_takes_heads_further_apart_than_32_bits_reach() -> None:
    apart = 2**31 // 3 + 1
    buffer = torch.empty(3 * apart + 4 * K, dtype=torch.float16)  # untouched pages take no memory
    x = buffer.as_strided((4, 4, K), (K, apart, 1))
    x.copy_(normal(4, 4, K, dtype=torch.float16))
    options = tables(4) | {"cu_seqlens": offsets([4])}
    same_bits(rope(x, **options), rope(x.clone(memory_format=torch.contiguous_format), **options), "y")


def test_has_the_bits_of_each_sequence_alone() -> None:
    lengths = [3, 0, 17, 1]
    for dtype in (torch.float32, torch.bfloat16):
        x, dy, options = normal(21, H, K, dtype=dtype), normal(21, H, K, dtype=dtype), tables(17, dtype)
        packed = vjp(rope, {"x": x}, [dy], cu_seqlens=offsets(lengths), **options)
        for own, own_dy, y, dx in zip(*(v.split(lengths) for v in (x, dy, packed["0"], packed["x"])), strict=True):
            alone = vjp(rope, {"x": own.clone()}, [own_dy], cu_seqlens=offsets([len(own)]), **options)
            same_bits(y, alone["0"], f"y of {len(own)} tokens, {dtype}")
            same_bits(dx, alone["x"], f"gradient of {len(own)} tokens, {dtype}")


def test_rotates_queries_and_keys_to_the_bits_of_two_calls() -> None:
    lengths = [3, 0, 17, 1]
    for queries, keys in ((H, 2), (1, H), (2, 0)):
        inputs = {"q": normal(23, queries, K), "k": scattered(normal(23, keys, K))}
        dy = [normal(23, queries, K), normal(23, keys, K)]
        for interleaved in (False, True):
            options = tables(17) | {"cu_seqlens": offsets(lengths), "interleaved": interleaved}
            both = vjp(rope_qk, inputs, dy, **options)
            for i, name in enumerate(inputs):
                alone = vjp(rope, {"x": inputs[name]}, [dy[i]], **options)
                same_bits(both[str(i)], alone["0"], f"{name} rotated")
                same_bits(both[name], alone["x"], f"gradient of {name}")


def test_is_nan_past_the_tables_where_nothing_is_checked() -> None:
    x, options = normal(5, H, K), tables(2)
    y = torch.ops.packproof.rope(x, options["cos"], options["sin"], offsets([4]), None, False, False)
    assert y[2:4, :, : 2 * R].isnan().all()
    same_bits(y[:4, :, 2 * R :], x[:4, :, 2 * R :], "channels after the pairs")
    same_bits(y[:2], rope(x[:2], **options, cu_seqlens=offsets([2])), "positions in the tables")
    assert not y[4].any()


STARTS = [2, 5, -4, -40]  # for lengths 3, 0, 17, 1: later in the tables, nothing, left padding, all of it padding


def test_starts_each_sequence_at_its_position() -> None:
    lengths = [3, 0, 17, 1]
    for kind in (torch.int32, torch.int64):
        for interleaved in (False, True):
            inputs = {"x": normal(21, H, K, dtype=torch.float64)}
            options = tables(13) | {"cu_seqlens": offsets(lengths), "interleaved": interleaved}
            options["offsets"] = torch.tensor(STARTS, dtype=kind)
            dy = [normal(21, H, K, dtype=torch.float64)]
            wanted = vjp(refs.rope, inputs, dy, **options)
            close(vjp(rope, inputs, dy, **options), wanted, 1e-15, f"{kind} interleaved={interleaved}")


def test_has_the_bits_of_each_sequence_alone_at_its_position() -> None:
    lengths, starts = [3, 0, 17, 1], torch.tensor(STARTS)
    for dtype in (torch.float32, torch.bfloat16):
        inputs, dy = (
            {"q": normal(23, H, K, dtype=dtype), "k": normal(23, 2, K, dtype=dtype)},
            [
                normal(23, H, K, dtype=dtype),
                normal(23, 2, K, dtype=dtype),
            ],
        )
        options = tables(13, dtype)
        packed = vjp(rope_qk, inputs, dy, cu_seqlens=offsets(lengths), offsets=starts, **options)
        assert not packed["0"][21:].any(), "slack"
        parts = zip(
            *(v[:21].split(lengths) for v in (inputs["q"], dy[0], packed["0"], packed["q"])), starts, strict=True
        )
        for own, own_dy, y, dx, start in parts:
            alone = vjp(
                rope, {"x": own.clone()}, [own_dy], cu_seqlens=offsets([len(own)]), offsets=start[None], **options
            )
            same_bits(y, alone["0"], f"y from {start}, {dtype}")
            same_bits(dx, alone["x"], f"gradient from {start}, {dtype}")


def test_positions_of_zero_have_the_bits_of_no_positions() -> None:
    x, options = normal(5, H, K, dtype=torch.bfloat16), tables(4, torch.bfloat16) | {"cu_seqlens": offsets([4])}
    same_bits(rope(x, **options, offsets=torch.zeros(1, dtype=torch.int32)), rope(x, **options), "y")


def test_leaves_padding_as_it_is() -> None:
    x = normal(4, H, K)
    x[0], x[1, :, ::2] = float("inf"), -float("inf")
    y = rope(x, **tables(2), cu_seqlens=offsets([4]), offsets=torch.tensor([-2]))
    same_bits(y[:2], x[:2], "padding")
    assert y[2:].isfinite().all()


def test_is_nan_wherever_a_position_past_the_tables_is_not_checked() -> None:
    x, options = normal(3, H, K), tables(2)
    for start in (2**31 - 1, 2**31, 2**32, 2**40):
        y = torch.ops.packproof.rope(
            x, options["cos"], options["sin"], offsets([1, 2]), torch.tensor([start, 1 - 2**40]), False, False
        )
        assert y[0, :, : 2 * R].isnan().all(), start
        same_bits(y[1:], x[1:], "padding")


@pytest.mark.proof
@pytest.mark.proof
def test_passes_opcheck_and_compiles_in_one_graph() -> None:
    x, options = normal(5, H, K), tables(3)
    arguments = (x.clone().requires_grad_(), options["cos"], options["sin"], offsets([3, 2]), None, True, False)
    torch.library.opcheck(torch.ops.packproof.rope.default, arguments)
    torch.library.opcheck(torch.ops.packproof.rope_qk.default, (normal(5, 1, K), *arguments))
    compiled = torch.compile(rope, backend="aot_eager", fullgraph=True)
    wanted = rope(x, **options, cu_seqlens=offsets([3, 2]))
    same_bits(compiled(x, **options, cu_seqlens=offsets([3, 2])), wanted, "compiled")
    later = {"cu_seqlens": offsets([3, 2]), "offsets": torch.tensor([-1, 1])}
    same_bits(compiled(x, **options, **later), rope(x, **options, **later), "compiled, with positions")


def refused(text: str, **changed: Any) -> None:
    inputs: dict[str, Any] = {"x": normal(3, H, K), "cu_seqlens": offsets([3])} | tables(3)
    with pytest.raises(ArgumentError, match=re.escape(text)):
        rope(**inputs | changed)


def test_refuses_wrong_arguments() -> None:
    refused("cos has 2 positions (axis m) but the longest sequence has 3 tokens", **tables(2))
    refused("cos rotates 2 x 5 channels (axis r) but x has 9 (axis k)", x=normal(3, H, 9))
    refused("cos requires a gradient", x=normal(3, H, K).requires_grad_(), cos=normal(3, R).requires_grad_())
    refused("interleaved is 'half'", interleaved="half")
    with pytest.raises(ArgumentError, match=r"rope_qk: k has 4 tokens"):
        rope_qk(normal(3, H, K), normal(4, 1, K), **tables(3), cu_seqlens=offsets([3]))
