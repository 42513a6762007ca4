"""The signatures of packproof's ops: the one place where the axes of their tensors are declared.

The error messages of `packproof.refs.arguments` say what each axis counts.
"""

from packproof.refs.arguments import Signature

_FLAG = (False, True)

CAUSAL_CONV1D = Signature(
    op="causal_conv1d",
    inputs={"x": "t d", "weight": "d w", "bias": "d?", "initial_states": "s d w-1?"},
    outputs={"y": "t d", "final_states": "s d w-1?"},
    options={"activation": (None, "silu"), "return_final_states": _FLAG},
)

SELECTIVE_SCAN = Signature(
    op="selective_scan",
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
    options={"delta_softplus": _FLAG, "return_final_states": _FLAG},
    fixed=frozenset({"A", "D", "delta_bias", "initial_states", "final_states"}),
    groups={"g": "d"},
)

SSD = Signature(
    op="ssd",
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
    options={"dt_softplus": _FLAG, "return_final_states": _FLAG},
    fixed=frozenset({"A", "D", "dt_bias", "initial_states", "final_states"}),
    groups={"g": "h"},
)

ROPE = Signature(
    op="rope",
    inputs={"x": "t h k", "cos": "m r", "sin": "m r"},
    outputs={"y": "t h k"},
    options={"interleaved": _FLAG},
    tables=frozenset({"cos", "sin"}),
)

ROPE_QK = Signature(
    op="rope_qk",
    inputs={"q": "t hq k", "k": "t hk k", "cos": "m r", "sin": "m r"},
    outputs={"y_q": "t hq k", "y_k": "t hk k"},
    options={"interleaved": _FLAG},
    tables=frozenset({"cos", "sin"}),
)

ATTENTION = Signature(
    op="attention",
    inputs={"q": "t hq k", "k": "t hk k", "v": "t hk v"},
    outputs={"y": "t hq v"},
    options={"causal": _FLAG},
    groups={"hk": "hq"},
)
