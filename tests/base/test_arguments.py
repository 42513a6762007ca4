"""What a signature accepts, and the text with which it refuses the rest."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof.base.arguments import bind, check_option, check_options, empty_gradients, empty_output
from packproof.base.signatures import Signature
from packproof.refs import ArgumentError, LayoutError

X = torch.zeros(36, 4)
B = torch.zeros(36, 2, 3)
A = torch.zeros(4, 3)
CU = torch.tensor([0, 9, 9, 21, 36], dtype=torch.int32)


OP = Signature(
    op="op",
    inputs={"x": "t d", "B": "t n | t g n", "A": "d n?", "states": "s d n-1?"},
    outputs={"y": "t d", "final": "s d n-1?"},
    options={"flag": (False, True), "activation": (None, "silu")},
    fixed=frozenset({"A", "final"}),
    tables=frozenset({"B"}),
    groups={"g": "d"},
)


def call(x: Any = X, b: Any = B, a: Any = None, cu: Any = CU, values: bool = True) -> dict[str, int]:
    return bind(OP, cu, x=x, B=b, A=a, states=None, values=values)


def test_sizes_of_every_axis() -> None:
    assert call() == {"t": 36, "d": 4, "g": 2, "n": 3, "s": 4}
    assert call(b=torch.zeros(36, 5)) == {"t": 36, "d": 4, "n": 5, "s": 4}
    assert call(a=A)["n"] == 3
    assert call(cu=CU.long())["s"] == 4
    assert call(cu=torch.tensor([0]))["s"] == 0
    assert call(x=X[:0], b=B[:0], cu=torch.tensor([0, 0]))["t"] == 0


def test_a_derived_axis_gives_its_base() -> None:
    assert bind(Signature("op", {"x": "t d-1"}), CU, x=X, values=True)["d"] == 5


def test_offsets_are_read_only_on_request() -> None:
    x, b, cu = X.to("meta"), B.to("meta"), CU.to("meta")
    assert call(x, b, cu=cu, values=False)["s"] == 4
    assert call(cu=CU + 99, values=False)["s"] == 4
    with pytest.raises(LayoutError):
        call(cu=CU + 99, values=True)


@pytest.mark.parametrize("token", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("other", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_of_fixed_tensors_and_tables(token: torch.dtype, other: torch.dtype) -> None:
    def accepts(name: str) -> bool:
        tensors = {"a": A.to(other)} if name == "a" else {"b": B.to(other)}
        try:
            call(**{"x": X.to(token), "b": B.to(token), **tensors})
        except ArgumentError:
            return False
        return True

    assert accepts("a") == (other == (torch.float64 if token == torch.float64 else torch.float32))
    assert accepts("b") == (other in (token, torch.float32))


def test_tokens_share_one_dtype() -> None:
    with pytest.raises(ArgumentError) as caught:
        bind(Signature("op", {"x": "t d", "y": "t d"}), CU, x=X.half(), y=X, values=True)
    assert str(caught.value) == (
        "op: y is float32 but float16 was expected with float16 x\n"
        "    x                float16 (36, 4)\n"
        "    y                float32 (36, 4)"
    )


LISTED = "    x                float32 (36, 4)\n"
WAY_OUT = "    Offsets count tokens from 0, never decrease and may not pass the last one."


def offsets(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_an_unknown_tensor_is_a_mistake_in_the_call_of_bind() -> None:
    with pytest.raises(TypeError, match="op has no input z; it has x, B, A, states"):
        bind(OP, CU, x=X, B=B, z=X, values=True)


@pytest.mark.parametrize("token", [torch.float64, torch.bfloat16])
def test_outputs_and_gradients_have_the_declared_shapes_and_dtypes(token: torch.dtype) -> None:
    wide = torch.float64 if token == torch.float64 else torch.float32
    x, b, a = X.to(token, copy=True).to("meta"), B.to(token), A.to(wide)
    y, final = (empty_output(OP, name, x, call(X, B)) for name in OP.outputs)
    assert (y.shape, y.dtype, y.device) == ((36, 4), token, x.device)
    assert (final.shape, final.dtype) == ((4, 4, 2), wide)
    found = empty_gradients(OP, x, b, a, None)
    assert [(tuple(g.shape), g.dtype) for g in found] == [
        ((36, 4), token), ((36, 2, 3), token), ((4, 3), wide), ((0,), token)
    ]  # fmt: skip


MESSAGES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "not a tensor": (
        lambda: call(x=[1.0]),
        ArgumentError,
        "op: x is a list but a tensor of axes (t d) was expected",
    ),
    "missing": (lambda: call(b=None), ArgumentError, "op: B is None but a tensor of axes (t n | t g n) was expected"),
    "integers": (
        lambda: call(x=X.int()),
        ArgumentError,
        "op: x is int32 but float64 or float32 or bfloat16 or float16 was expected",
    ),
    "axes": (
        lambda: call(b=torch.zeros(36)),
        ArgumentError,
        "op: B has 1 axis but (t n) or (t g n) was expected\n"
        + LISTED
        + "    B                float32 (36,)\n    cu_seqlens       int32 (5,)",
    ),
    "tokens": (
        lambda: call(b=B[:35]),
        ArgumentError,
        "op: B has 35 tokens (axis t) but x has 36\n"
        + LISTED
        + "    B                float32 (35, 2, 3)\n    cu_seqlens       int32 (5,)",
    ),
    "device": (
        lambda: call(b=B.to("meta")),
        ArgumentError,
        "op: B is on meta but x is on cpu\n    All tensors of a call lie on one device: B.to(x.device)",
    ),
    "offsets on another device": (
        lambda: call(cu=CU.to("meta")),
        LayoutError,
        "op: cu_seqlens is on meta but x is on cpu\n"
        "    All tensors of a call lie on one device: cu_seqlens.to(x.device)",
    ),
    "offsets in a list": (
        lambda: call(cu=[0, 36]),
        LayoutError,
        "op: cu_seqlens is a list but an int32 or int64 tensor (s + 1,) was expected\n"
        "    PackLayout.from_lengths(lengths).cu_seqlens() makes one.",
    ),
    "float offsets": (
        lambda: call(cu=CU.float()),
        LayoutError,
        "op: cu_seqlens is float32 but int32 or int64 was expected\n"
        "    Offsets count tokens: cu_seqlens.to(torch.int32)",
    ),
    "offsets of two axes": (
        lambda: call(cu=CU[None]),
        LayoutError,
        "op: cu_seqlens has shape (1, 5) but (s + 1,) was expected\n"
        "    One offset per sequence and the end of the last one; [0] for no sequences.",
    ),
    "no offsets": (
        lambda: call(cu=CU[:0]),
        LayoutError,
        "op: cu_seqlens has shape (0,) but (s + 1,) was expected\n"
        "    One offset per sequence and the end of the last one; [0] for no sequences.",
    ),
    "past the tokens": (
        lambda: call(cu=offsets(0, 9, 9, 21, 37)),
        LayoutError,
        "op: cu_seqlens ends at 37 but x has 36 tokens\n"
        f"{LISTED}    cu_seqlens       int32 (5,) [0, 9, 9, 21, 37]\n{WAY_OUT}",
    ),
    "not from 0": (
        lambda: call(cu=offsets(1, 36)),
        LayoutError,
        f"op: cu_seqlens starts at 1 but 0 was expected\n{LISTED}    cu_seqlens       int32 (2,) [1, 36]\n{WAY_OUT}",
    ),
    "decreasing, far inside": (
        lambda: call(cu=offsets(*range(12), 10, *range(11, 20))),
        LayoutError,
        "op: cu_seqlens decreases from 11 to 10 at entry 12\n"
        f"{LISTED}    cu_seqlens       int32 (22,) [..., 8, 9, 10, 11, 10, 11, 12, 13, ...]\n{WAY_OUT}",
    ),
    "groups": (
        lambda: call(b=torch.zeros(36, 3, 3)),
        ArgumentError,
        "op: 4 channels (axis d) cannot be shared evenly by 3 groups (axis g)",
    ),
    "no groups": (
        lambda: call(b=torch.zeros(36, 0, 3)),
        ArgumentError,
        "op: 4 channels (axis d) cannot be shared evenly by 0 groups (axis g)",
    ),
    "one": (
        lambda: call(X[:, :1], torch.zeros(36, 2, 3)),
        ArgumentError,
        "op: 1 channel (axis d) cannot be shared evenly by 2 groups (axis g)",
    ),
    "a number": (lambda: call(x=1), ArgumentError, "op: x is an int but a tensor of axes (t d) was expected"),
    "too few states": (
        lambda: call(b=torch.zeros(36, 0)),
        ArgumentError,
        "op: B has 0 states (axis n) but at least 1 was expected\n"
        + LISTED
        + "    B                float32 (36, 0)\n    cu_seqlens       int32 (5,)",
    ),
    "option": (
        lambda: check_options(OP, activation="silu", flag=1),
        ArgumentError,
        "op: flag is 1 but False or True was expected",
    ),
    "option that is a tensor": (
        lambda: check_option("op", "flag", torch.zeros(2), (None, "silu")),
        ArgumentError,
        "op: flag is tensor([0., 0.]) but None or 'silu' was expected",
    ),
}


@pytest.mark.parametrize(("wrong", "kind", "text"), MESSAGES.values(), ids=MESSAGES.keys())
def test_messages(wrong: Callable[[], object], kind: type[Exception], text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        wrong()
    assert str(caught.value) == text
    assert type(caught.value) is kind
