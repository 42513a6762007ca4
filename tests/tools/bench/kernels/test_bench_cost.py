"""Bytes and operations of each op against figures counted by hand, and the settings that ops are timed with."""

import pytest

from packproof.base.errors import UsageError
from packproof.bench.kernels.cost import costs
from packproof.bench.kernels.layouts import BenchLayout
from packproof.bench.kernels.settings import Setting, setting, sizes_from_text
from packproof.properties.ops.catalogue import OPS

T = 10 + 300  # tokens
LAYOUT = BenchLayout("two", (10, 300))
PAIRS = 10 * 11 // 2 + 300 * 301 // 2  # of positions under a causal mask
CHUNK_PAIRS = 10 * 11 // 2 + 256 * 257 // 2 + 44 * 45 // 2  # of positions in chunks of 256
# op, its sizes and options; bytes in bf16, forward and backward; operations, forward and backward
CASES = [
    (
        "causal_conv1d",
        Setting({"d": 8, "w": 4}, ("bias",), {"activation": "silu"}),
        2 * (2 * T * 8 + 8 * 4 + 8),  # x, y, weight, bias
        2 * (3 * T * 8 + 2 * (8 * 4 + 8)),  # x, dy, dx; weight and bias and their gradients
        2 * T * 8 * 4,
        4 * T * 8 * 4,
    ),
    (
        "rope",
        Setting({"h": 2, "k": 8, "r": 3, "m": "longest"}),
        2 * (2 * T * 16 + 2 * 300 * 3),  # x, y; cos and sin
        2 * (2 * T * 16 + 2 * 300 * 3),  # dy, dx; x itself is not needed
        6 * T * 2 * 3,
        6 * T * 2 * 3,
    ),
    (
        "rope_qk",
        Setting({"hq": 2, "hk": 1, "k": 8, "r": 3, "m": "longest"}),
        2 * (2 * T * 24 + 2 * 300 * 3),  # as rope's, of three heads
        2 * (2 * T * 24 + 2 * 300 * 3),
        6 * T * 3 * 3,
        6 * T * 3 * 3,
    ),
    (
        "hadamard",
        Setting({"h": 2, "k": 8}, ("signs",)),
        2 * (2 * T * 16 + 8),  # x, y; signs
        2 * (2 * T * 16 + 8),
        5 * T * 16,  # three stages, a sign and the scale
        5 * T * 16,
    ),
    (
        "selective_scan",
        Setting({"d": 4, "n": 3, "g": 1}, ("D", "z", "delta_bias"), {"delta_softplus": True}),
        2 * (4 * T * 4 + 2 * T * 3) + 4 * (4 * 3 + 4 + 4),  # u, delta, z, y; B and C; A, D and bias in fp32
        2 * (7 * T * 4 + 4 * T * 3) + 2 * 4 * (4 * 3 + 4 + 4),
        7 * T * 4 * 3,
        20 * T * 4 * 3,
    ),
    (
        "ssd",
        Setting({"h": 4, "p": 2, "n": 3, "g": 2}, ("D",), {"dt_softplus": True}),
        2 * (2 * T * 8 + T * 4 + 2 * T * 6) + 4 * (4 + 4),  # x, y; dt; B and C; A and D in fp32
        2 * (3 * T * 8 + 2 * T * 4 + 4 * T * 6) + 2 * 4 * (4 + 4),
        2 * CHUNK_PAIRS * (2 * 3 + 4 * 2) + 4 * T * 4 * 2 * 3,
        2 * (2 * CHUNK_PAIRS * (2 * 3 + 4 * 2) + 4 * T * 24) + 2 * CHUNK_PAIRS * 6 + 2 * T * 24,
    ),
    (
        "attention",
        Setting({"hq": 2, "hk": 1, "k": 4, "v": 3}, (), {"causal": True}),
        2 * (T * 8 + T * 4 + T * 3 + T * 6),  # q, k, v, y
        2 * (2 * (T * 8 + T * 4 + T * 3) + T * 6),  # q, k, v and their gradients; dy
        2 * PAIRS * 2 * (4 + 3),
        2 * PAIRS * 2 * (3 * 4 + 2 * 3),
    ),
]


@pytest.mark.parametrize(("op", "chosen", "read", "back", "flops", "back_flops"), CASES, ids=[c[0] for c in CASES])
def test_costs_are_those_counted_by_hand(
    op: str, chosen: Setting, read: int, back: int, flops: int, back_flops: int
) -> None:
    found = costs(chosen.sample(OPS[op], LAYOUT, "bfloat16", 0), gradients=True)
    assert (found["forward"].bytes, found["backward"].bytes) == (read, back)
    assert (found["forward"].flops, found["backward"].flops) == (flops, back_flops)
    assert found["both"].bytes == read + back
    assert found["both"].flops == flops + back_flops


def test_ssd_at_the_size_of_a_model_is_208_billion_operations() -> None:
    """The figure that published times of SSD are divided by: 65,536 tokens, 64 heads of 64, state 128."""
    flops = OPS["ssd"].flops
    assert flops is not None
    assert round(flops({"h": 64, "p": 64, "n": 128, "g": 1}, [65_536], {}).forward / 1e9) == 209  # with the diagonal


def test_a_kernel_without_gradients_has_a_forward_pass_only() -> None:
    op, chosen, *_ = CASES[0]
    assert list(costs(chosen.sample(OPS[op], LAYOUT, "float32", 0), gradients=False)) == ["forward"]


@pytest.mark.parametrize("name", OPS)
def test_every_op_has_a_setting_on_both_devices(name: str) -> None:
    on_gpu, on_cpu = (setting(OPS[name], device, {}, None) for device in ("cuda", "cpu"))
    assert on_gpu.sizes.keys() == on_cpu.sizes.keys()
    assert (on_gpu.present, on_gpu.options) == (on_cpu.present, on_cpu.options)


def test_tensors_repeat_a_block_and_keep_their_shapes() -> None:
    layout = BenchLayout("long", (5000, 0, 200))
    sample = setting(OPS["rope"], "cpu", {"h": 1, "k": 2, "r": 1}, None).sample(OPS["rope"], layout, "float32", 0)
    assert all(x.shape == sample.shape(name) for name, x in sample.inputs.items())
    assert sample.inputs["x"][4093:].equal(sample.inputs["x"][:1107])
    assert sample.inputs["cos"].shape == (5000, 1)


@pytest.mark.parametrize("text", ["d", "d=", "=4", "d=0", "d=-1", "d=4,", "d=4;n=1"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--sizes: .* expected (sizes of axes, such as|a whole number above)"):
        sizes_from_text(text)
