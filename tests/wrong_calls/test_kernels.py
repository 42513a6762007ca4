"""Wrong calls of packproof's own kernels, on CPU tensors: their arguments are looked at before a GPU is missed."""

from typing import Any

import pytest
import torch

from packproof.base.errors import ArgumentError
from tests.wrong_calls.ops import Call, call, wrong_calls
from tests.wrong_calls.refused import Wrong, assert_all_refused, by_call

pytest.importorskip("triton", reason="kernels need triton")
from packproof import kernels

CALLS = {
    "attention": call(kernels.attention, "attention"),
    "causal_conv1d": call(kernels.causal_conv1d, "causal_conv1d"),
    "selective_scan": call(kernels.selective_scan, "selective_scan"),
    "ssd": call(kernels.ssd, "ssd"),
    "linear_attention": call(kernels.linear_attention, "linear_attention"),
    "simple_gla": call(kernels.simple_gla, "simple_gla"),
    "retention": call(kernels.retention, "retention"),
    "rope": call(kernels.rope, "rope"),
    "rope_qk": call(kernels.rope_qk, "rope_qk"),
    "round_fp8": call(kernels.round_fp8, "round_fp8"),
    "grouped_mm": call(kernels.grouped_mm, "grouped_mm"),
    "hadamard": call(kernels.hadamard, "hadamard", k=8),
    "rope_hadamard": call(kernels.rope_hadamard, "rope_hadamard", k=8),
}
ATTENTION, CONV, SCAN, SSD, ROPE, GLA = (
    CALLS[name] for name in ("attention", "causal_conv1d", "selective_scan", "ssd", "rope", "simple_gla")
)
IMPL = "'auto' or 'triton' or 'cuda' was expected"


def in_double(one: Call) -> dict[str, Any]:
    return {name: tensor.double() for name, tensor in one.tensors.items()}


MORE: dict[str, Wrong] = {
    "conv that knows relu": Wrong(CONV.but(activation="relu"), ("causal_conv1d: activation is 'relu'", "'silu'")),
    "conv in no language": Wrong(CONV.but(impl="cutlass"), ("causal_conv1d: impl is 'cutlass'", IMPL)),
    "conv in None": Wrong(CONV.but(impl=None), ("causal_conv1d: impl is None", IMPL)),
    "scan in no language": Wrong(SCAN.but(impl=["cuda"]), ("selective_scan: impl is ['cuda']", IMPL)),
    "scan in double": Wrong(
        SCAN.but(**in_double(SCAN)), ("selective_scan: u is float64", "packproof.refs.selective_scan")
    ),
    "ssd in double": Wrong(SSD.but(**in_double(SSD)), ("ssd: x is float64", "packproof.refs.ssd")),
    "ssd of too many states": Wrong(
        SSD.but(B=torch.ones(5, 2, 257), C=torch.ones(5, 2, 257), initial_states=None),
        ("ssd: B has 257 states", "at most 256", "packproof.refs.ssd has no limit"),
    ),
    "ssd in another language": Wrong(SSD.but(impl="cutlass"), ("ssd: impl is 'cutlass'", IMPL)),
    "ssd in chunks": Wrong(SSD.but(chunk=64), ("ssd: chunk is no argument", "It takes x, dt")),
    "gla in double": Wrong(GLA.but(**in_double(GLA)), ("simple_gla: q is float64", "packproof.refs.simple_gla")),
    "gla of too many channels": Wrong(
        GLA.but(q=torch.ones(5, 2, 257), k=torch.ones(5, 2, 257), initial_states=None),
        ("simple_gla: k has 257 channels per head (axis k)", "at most 256", "packproof.refs.simple_gla has no limit"),
    ),
    "gla by infinity": Wrong(GLA.but(scale=float("inf")), ("simple_gla: scale is inf", "a finite number or None")),
    "gla with gates of 16 bits beside fp32": Wrong(
        GLA.but(g=-torch.ones(5, 4, dtype=torch.bfloat16)), ("simple_gla: g is bfloat16 but float32 was expected",)
    ),
    "retention that decays by token": Wrong(
        CALLS["retention"].but(decay=-torch.ones(5, 4)), ("retention: decay has 2 axes", "(hv)")
    ),
    "attention in double": Wrong(
        ATTENTION.but(**in_double(ATTENTION)), ("attention: q is float64", "packproof.refs.attention")
    ),
    "attention of too wide heads": Wrong(
        ATTENTION.but(v=torch.ones(5, 2, 257)),
        ("attention: v has 257 channels per head (axis v)", "at most 256", "packproof.refs.attention has no limit"),
    ),
    "attention over a window of one number": Wrong(
        ATTENTION.but(window_size=4), ("attention: window_size is 4", "(left, right)")
    ),
    "attention with a scale of text": Wrong(
        ATTENTION.but(softmax_scale="1"), ("attention: softmax_scale is '1'", "a finite number or None")
    ),
    "attention with a cap below 0": Wrong(ATTENTION.but(softcap=-1.0), ("attention: softcap is -1.0",)),
    "attention of keys past the end": Wrong(
        ATTENTION.but(cu_seqlens_k=torch.tensor([0, 2, 6])), ("attention: cu_seqlens_k ends at 6", "k has 5 tokens")
    ),
    "tables that are too short": Wrong(
        ROPE.but(cos=torch.ones(2, 2), sin=torch.ones(2, 2)), ("2 positions", "starts at position 0 and has 3 tokens")
    ),
    "tables that are too wide": Wrong(
        ROPE.but(cos=torch.ones(3, 4), sin=torch.ones(3, 4)), ("2 x 4 channels", "x has 6")
    ),
    "a filter narrower than its tokens": Wrong(
        CONV.but(weight=torch.ones(4, 3, dtype=torch.float16)),
        ("causal_conv1d: weight is float16 but float32 was expected with float32 x",),
    ),
    "a filter in double beside tokens of 16 bits": Wrong(
        CONV.but(x=torch.ones(5, 4, dtype=torch.bfloat16), weight=torch.ones(4, 3, dtype=torch.float64)),
        ("causal_conv1d: weight is float64 but bfloat16 or float32 was expected with bfloat16 x",),
    ),
    "a position past the tables": Wrong(
        ROPE.but(offsets=torch.tensor([-1, 1])), ("3 positions", "sequence 1 starts at position 1 and has 3 tokens")
    ),
}
TABLE = {f"{name}: {what}": wrong for name, one in CALLS.items() for what, wrong in wrong_calls(one)} | MORE


@pytest.mark.parametrize(("name", "table"), by_call(TABLE).items())
def test_each_is_refused(name: str, table: dict[str, Wrong]) -> None:
    assert table, name
    assert_all_refused(table)


@pytest.mark.parametrize("one", CALLS.values(), ids=CALLS)
def test_what_they_are_made_of_lacks_a_gpu_alone(one: Call) -> None:
    with pytest.raises(ArgumentError, match="the tensors are on cpu, but the Triton kernel runs on a GPU"):
        one.but()()


def test_a_misspelt_kernel_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module .packproof\.kernels. has no attribute .sdd."):
        _ = kernels.sdd  # type: ignore[attr-defined]
