"""The ops of packproof, declared."""

from packproof import refs
from packproof.properties import flops, magnitude
from packproof.properties.op import Op
from packproof.refs.errors import UsageError

CAUSAL_CONV1D = Op(
    name="causal_conv1d",
    reference=refs.causal_conv1d,
    absolute=magnitude.causal_conv1d,
    inputs={"x": "t d", "weight": "d w", "bias": "d?", "initial_states": "s d w-1?"},
    outputs={"y": "t d", "final_states": "s d w-1?"},
    options={"activation": (None, "silu"), "return_final_states": (False, True)},
    sizes=({"d": 3, "w": 4}, {"d": 5, "w": 2}, {"d": 130, "w": 3}, {"d": 136, "w": 4}, {"d": 2, "w": 1}),
    where=("d >= 1", "w >= 1"),
    model_sizes=({"d": 768, "w": 4}, {"d": 1027, "w": 3}),
    carry=("initial_states", "final_states", "return_final_states"),
    window="w",
    flops=flops.causal_conv1d,
)

SELECTIVE_SCAN = Op(
    name="selective_scan",
    reference=refs.selective_scan,
    absolute=magnitude.selective_scan,
    cumsum=magnitude.selective_scan_cumsum,
    inputs={
        "u": "t d",
        "delta": "t d",
        "A": "d n",
        "B": "t n | t g n",
        "C": "t n | t g n",
        "D": "d?",
        "z": "t d?",
        "delta_bias": "d?",
        "initial_states": "s d n?",
    },
    outputs={"y": "t d", "final_states": "s d n?"},
    options={"delta_softplus": (False, True), "return_final_states": (False, True)},
    sizes=({"d": 4, "n": 3, "g": 2}, {"d": 3, "n": 1, "g": 1}, {"d": 2, "n": 5, "g": 2}, {"d": 10, "n": 11, "g": 2}),
    where=("d % g == 0",),
    model_sizes=({"d": 70, "n": 16, "g": 2}, {"d": 33, "n": 64, "g": 1}, {"d": 160, "n": 16, "g": 1}),
    draws={"delta": "step|delta_softplus", "A": "decay", "delta_bias": "step"},
    fixed=frozenset({"A", "D", "delta_bias", "initial_states", "final_states"}),
    carry=("initial_states", "final_states", "return_final_states"),
    flops=flops.selective_scan,
)

SSD = Op(
    name="ssd",
    reference=refs.ssd,
    absolute=magnitude.ssd,
    cumsum=magnitude.ssd_cumsum,
    inputs={
        "x": "t h p",
        "dt": "t h",
        "A": "h",
        "B": "t g n",
        "C": "t g n",
        "D": "h | h p?",
        "z": "t h p?",
        "dt_bias": "h?",
        "initial_states": "s h p n?",
    },
    outputs={"y": "t h p", "final_states": "s h p n?"},
    options={"dt_softplus": (False, True), "return_final_states": (False, True)},
    sizes=(
        {"h": 2, "p": 3, "n": 4, "g": 1},
        {"h": 1, "p": 1, "n": 1, "g": 1},
        {"h": 6, "p": 19, "n": 3, "g": 2},
        {"h": 2, "p": 18, "n": 20, "g": 1},
        {"h": 2, "p": 2, "n": 17, "g": 2},
    ),
    where=("h % g == 0",),
    model_sizes=(
        {"h": 2, "p": 64, "n": 128, "g": 1},
        {"h": 3, "p": 32, "n": 64, "g": 3},
        {"h": 2, "p": 80, "n": 48, "g": 1},
        {"h": 1, "p": 128, "n": 256, "g": 1},
        {"h": 4, "p": 64, "n": 16, "g": 2},
    ),
    draws={"dt": "step|dt_softplus", "A": "decay", "dt_bias": "step"},
    fixed=frozenset({"A", "D", "dt_bias", "initial_states", "final_states"}),
    carry=("initial_states", "final_states", "return_final_states"),
    matmul=True,
    flops=flops.ssd,
)

ROPE = Op(
    name="rope",
    reference=refs.rope,
    absolute=magnitude.rope,
    inputs={"x": "t h k", "cos": "m r", "sin": "m r"},
    outputs={"y": "t h k"},
    options={"interleaved": (False, True)},
    sizes=(
        {"h": 2, "k": 8, "r": 4, "m": "longest"},
        {"h": 3, "k": 11, "r": 5, "m": "rows"},
        {"h": 1, "k": 32, "r": 16, "m": "longest"},
        {"h": 3, "k": 2, "r": 1, "m": "longest"},
    ),
    where=("2 * r <= k",),
    model_sizes=({"h": 9, "k": 128, "r": 64, "m": "longest"}, {"h": 16, "k": 200, "r": 80, "m": "longest"}),
    draws={"cos": "unit", "sin": "unit"},
    constants=frozenset({"cos", "sin"}),
    saved=frozenset({"cos", "sin"}),
    flops=flops.rope,
)

ROPE_QK = Op(
    name="rope_qk",
    reference=refs.rope_qk,
    absolute=magnitude.rope_qk,
    inputs={"q": "t hq k", "k": "t hk k", "cos": "m r", "sin": "m r"},
    outputs={"y_q": "t hq k", "y_k": "t hk k"},
    options={"interleaved": (False, True)},
    sizes=(
        {"hq": 2, "hk": 1, "k": 8, "r": 4, "m": "longest"},
        {"hq": 5, "hk": 3, "k": 11, "r": 5, "m": "rows"},
        {"hq": 1, "hk": 6, "k": 2, "r": 1, "m": "longest"},
    ),
    where=("2 * r <= k",),
    model_sizes=(
        {"hq": 16, "hk": 2, "k": 128, "r": 64, "m": "longest"},
        {"hq": 9, "hk": 9, "k": 200, "r": 80, "m": "longest"},
    ),
    draws={"cos": "unit", "sin": "unit"},
    constants=frozenset({"cos", "sin"}),
    saved=frozenset({"cos", "sin"}),
    flops=flops.rope_qk,
)

ATTENTION = Op(
    name="attention",
    reference=refs.attention,
    absolute=magnitude.attention,
    inputs={"q": "t hq k", "k": "t hk k", "v": "t hk v"},
    outputs={"y": "t hq v"},
    options={
        "causal": (False, True),
        "window_size": ((-1, -1), (5, 0), (3, 2)),
        "softmax_scale": (None, 0.3),
    },
    sizes=(
        {"hq": 2, "hk": 1, "k": 4, "v": 3},
        {"hq": 2, "hk": 2, "k": 8, "v": 8},
        {"hq": 6, "hk": 2, "k": 8, "v": 8},
        {"hq": 1, "hk": 1, "k": 3, "v": 5},
    ),
    where=("hq % hk == 0",),
    causal="causal",
    matmul=True,
    flops=flops.attention,
)

OPS: dict[str, Op] = {op.name: op for op in (CAUSAL_CONV1D, SELECTIVE_SCAN, SSD, ROPE, ROPE_QK, ATTENTION)}


def find_op(name: str) -> Op:
    """The op of that name. Raises UsageError naming the ops there are."""
    if name not in OPS:
        raise UsageError(f"op: {name!r} is not known; there are {', '.join(OPS)}")
    return OPS[name]
