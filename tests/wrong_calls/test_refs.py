"""Wrong calls of the references: of each op and its forms, the steps, segsum, and the tools to write a reference."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from tests.wrong_calls.ops import CU, Call, call, wrong_calls
from tests.wrong_calls.refused import Wrong, assert_all_refused, by_call

ON_POOLS = ("causal_conv1d", "selective_scan", "ssd", "gated_delta_rule", "kda")
CALLS = {
    "causal_conv1d": call(refs.causal_conv1d, "causal_conv1d"),
    "selective_scan": call(refs.selective_scan, "selective_scan"),
    "ssd": call(refs.ssd, "ssd"),
    "rope": call(refs.rope, "rope"),
    "rope_qk": call(refs.rope_qk, "rope_qk"),
    "round_fp8": call(refs.round_fp8, "round_fp8"),
    "mixture_of_experts": call(refs.mixture_of_experts, "mixture_of_experts"),
    "grouped_mm": call(refs.grouped_mm, "grouped_mm"),
    "scaled_grouped_mm": call(refs.scaled_grouped_mm, "scaled_grouped_mm", bf=2),
    "dispatch_combine": call(refs.dispatch_combine, "dispatch_combine"),
    "quantize_blocks": call(refs.quantize_blocks, "quantize_blocks"),
    "hadamard": call(refs.hadamard, "hadamard", k=8),
    "rope_hadamard": call(refs.rope_hadamard, "rope_hadamard", k=8),
    "attention": call(refs.attention, "attention"),
    "linear_attention": call(refs.linear_attention, "linear_attention"),
    "simple_gla": call(refs.simple_gla, "simple_gla"),
    "retention": call(refs.retention, "retention"),
    "delta_rule": call(refs.delta_rule, "delta_rule"),
    "gated_delta_rule": call(refs.gated_delta_rule, "gated_delta_rule"),
    "kda": call(refs.kda, "kda"),
    **{f"{op}_update": call(getattr(refs, f"{op}_update"), f"{op}_update") for op in ON_POOLS},
}
LINEAR = ("linear_attention", "simple_gla", "retention", "delta_rule", "gated_delta_rule", "kda")
SSD = {name: value for name, value in CALLS["ssd"].arguments.items() if name not in ("D", "z")}
OTHER_FORMS = {
    "selective_scan_associative": Call(
        refs.selective_scan_associative, CALLS["selective_scan"].arguments, "selective_scan"
    ),
    "ssd_quadratic": Call(refs.ssd_quadratic, CALLS["ssd"].arguments, "ssd"),
    "ssd_chunked": Call(refs.ssd_chunked, CALLS["ssd"].arguments, "ssd"),
    "ssd_intermediates": Call(refs.ssd_intermediates, SSD, "ssd"),
    "ssd_state": Call(partial(refs.ssd_state, token=3), {n: v for n, v in SSD.items() if n != "C"}, "ssd"),
    **{f"{op}_chunked": Call(getattr(refs, f"{op}_chunked"), CALLS[op].arguments, op) for op in LINEAR},
}
CHUNK = {2.5: "a whole number", "64": "a whole number", None: "a whole number", True: "a whole number", 0: "1 or more"}


def of_each_form() -> dict[str, Wrong]:
    """The arguments are checked in one place for all forms of an op, so that a few calls of each are enough."""
    found: dict[str, Wrong] = {}
    for name, one in OTHER_FORMS.items():
        leader = next(iter(one.arguments))
        tensor: Tensor = one.arguments[leader]
        found |= {
            f"{name}: a list": Wrong(one.but(**{leader: [1.0]}), (f"{leader} is a list", "a tensor of axes (")),
            f"{name}: integers": Wrong(one.but(**{leader: tensor.int()}), (f"{leader} is int32", "float32")),
            f"{name}: one token less": Wrong(one.but(**{leader: tensor[:4]}), (leader, "has 5 tokens")),
            f"{name}: unknown name": Wrong(
                one.but(initial_state=None), ("initial_state is no argument", "did you mean initial_states?")
            ),
            f"{name}: missing": Wrong(one.without(last := _last(one)), (f"{last} is missing", "It takes ")),
        }
    chunked = {name: one for name, one in OTHER_FORMS.items() if name == "ssd_intermediates" or "chunked" in name}
    for name, one in chunked.items():
        for chunk, expected in CHUNK.items():
            found[f"{name}: chunk is {chunk!r}"] = Wrong(
                one.but(chunk=chunk), (f"{name}: chunk is {chunk!r}", expected)
            )
        found[f"{name}: chunk_size"] = Wrong(
            one.but(chunk_size=64),
            (f"{name}: chunk_size is no argument; did you mean chunk?", f"It takes {next(iter(one.arguments))}, "),
        )
    return found


def _last(one: Call) -> str:
    """An argument that no call can be without."""
    return "A" if "A" in one.arguments else "v"


def state(**changes: Any) -> object:
    return refs.ssd_state(**{**OTHER_FORMS["ssd_state"].arguments, "token": 3, **changes})


MORE: dict[str, Wrong] = {
    "no parts of D": Wrong(
        OTHER_FORMS["ssd_intermediates"].but(D=torch.ones(4)), ("D is no argument", "It takes x, dt")
    ),
    "no state of C": Wrong(lambda: state(C=torch.ones(5, 2, 2)), ("ssd_state: C is no argument", "It takes x, dt")),
    "a state past the end": Wrong(lambda: state(token=5), ("ssd_state: token is 5", "have 5 tokens")),
    "a state before the start": Wrong(lambda: state(token=-1), ("ssd_state: token is -1", "0 or more")),
    "a state between tokens": Wrong(lambda: state(token=1.5), ("ssd_state: token is 1.5", "a whole number")),
    "a state in slack": Wrong(
        lambda: state(cu_seqlens=CU[:2], initial_states=None, token=2), ("token is 2", "2 tokens")
    ),
    "a scan in another form": Wrong(
        CALLS["selective_scan"].but(B=torch.ones(5, 3, 2)), ("selective_scan: C has 2 groups", "B has 3")
    ),
    "heads that groups cannot share": Wrong(
        CALLS["ssd"].but(B=torch.ones(5, 3, 2), C=torch.ones(5, 3, 2)),
        ("4 heads", "cannot be shared evenly", "3 groups"),
    ),
    "a wide state in bf16": Wrong(
        CALLS["ssd"].but(initial_states=torch.ones(2, 4, 3, 2, dtype=torch.bfloat16)),
        ("ssd: initial_states is bfloat16", "float32 was expected"),
    ),
    "a convolution that knows relu": Wrong(
        CALLS["causal_conv1d"].but(activation="relu"), ("causal_conv1d: activation is 'relu'", "None or 'silu'")
    ),
    "tables that are too short": Wrong(
        CALLS["rope"].but(cos=torch.ones(2, 2), sin=torch.ones(2, 2)),
        ("2 positions", "starts at position 0 and has 3 tokens"),
    ),
    "tables that are too wide": Wrong(
        CALLS["rope"].but(cos=torch.ones(3, 4), sin=torch.ones(3, 4)), ("2 x 4 channels", "x has 6")
    ),
    "a filter narrower than its tokens": Wrong(
        CALLS["causal_conv1d"].but(weight=torch.ones(4, 3, dtype=torch.float16)),
        ("causal_conv1d: weight is float16 but float32 was expected with float32 x",),
    ),
    "a filter in double beside tokens of 16 bits": Wrong(
        CALLS["causal_conv1d"].but(
            x=torch.ones(5, 4, dtype=torch.bfloat16), weight=torch.ones(4, 3, dtype=torch.float64)
        ),
        ("causal_conv1d: weight is float64 but bfloat16 or float32 was expected with bfloat16 x",),
    ),
    "a position past the tables": Wrong(
        CALLS["rope"].but(offsets=torch.tensor([-1, 1])),
        ("3 positions", "sequence 1 starts at position 1 and has 3 tokens"),
    ),
    "a window of one number": Wrong(CALLS["attention"].but(window_size=4), ("window_size is 4", "(left, right)")),
    "a window of three": Wrong(CALLS["attention"].but(window_size=(1, 2, 3)), ("window_size is (1, 2, 3)",)),
    "a window of fractions": Wrong(CALLS["attention"].but(window_size=(1.5, 0)), ("window_size is (1.5, 0)",)),
    "a window below -1": Wrong(CALLS["attention"].but(window_size=(-2, 0)), ("-1 for no limit",)),
    "a window of None": Wrong(CALLS["attention"].but(window_size=None), ("window_size is None", "(left, right)")),
    "a scale of text": Wrong(CALLS["attention"].but(softmax_scale="1"), ("softmax_scale is '1'", "a finite number")),
    "a scale without end": Wrong(CALLS["attention"].but(softmax_scale=float("inf")), ("softmax_scale is inf",)),
    **{
        f"a softcap that is {value!r}": Wrong(CALLS["attention"].but(softcap=value), (f"softcap is {value!r}", says))
        for value, says in (
            ("1", "finite"),
            (None, "finite"),
            (True, "finite"),
            (float("inf"), "finite"),
            (-2, "above 0"),
        )
    },
    **{
        f"offsets of keys that are {what}": Wrong(CALLS["attention"].but(cu_seqlens_k=value), says)
        for what, value, says in (
            ("a list", [0, 2, 5], ("attention: cu_seqlens_k is a list", "an int32 or int64 tensor")),
            ("floats", CU.float(), ("attention: cu_seqlens_k is float32", "cu_seqlens_k.to(torch.int32)")),
            ("of another device", CU.to("meta"), ("attention: cu_seqlens_k is on meta", "on cpu")),
            ("a table", CU[None], ("attention: cu_seqlens_k has shape (1, 3)", "(s + 1,)")),
            ("empty", CU[:0], ("attention: cu_seqlens_k has shape (0,)",)),
            ("of fewer sequences", CU[:2], ("cu_seqlens_k has 1 sequence (axis s) but cu_seqlens has 2",)),
            ("not from 0", CU + 1, ("attention: cu_seqlens_k starts at 1", "0 was expected")),
            ("falling", torch.tensor([0, 4, 3]), ("attention: cu_seqlens_k decreases from 4 to 3 at entry 2",)),
            ("past the end", torch.tensor([0, 2, 6]), ("attention: cu_seqlens_k ends at 6", "k has 5 tokens")),
        )
    },
    "values of fewer keys": Wrong(
        CALLS["attention"].but(v=torch.ones(4, 2, 3), cu_seqlens_k=torch.tensor([0, 2, 4])),
        ("attention: v has 4 keys (axis u) but k has 5",),
    ),
    "keys without offsets of their own": Wrong(
        CALLS["attention"].but(k=torch.ones(4, 2, 6)), ("attention: k has 4 tokens (axis t) but q has 5",)
    ),
    "offsets by FlashAttention's name": Wrong(
        CALLS["attention"].but(cu_seqlens_q=CU), ("cu_seqlens_q is no argument; did you mean cu_seqlens?",)
    ),
    "keys where there are none": Wrong(
        CALLS["rope"].but(cu_seqlens_k=CU), ("rope: cu_seqlens_k is no argument", "did you mean cu_seqlens?")
    ),
    **{
        f"{op} with a scale that is {value!r}": Wrong(CALLS[op].but(scale=value), (f"{op}: scale is {value!r}", "None"))
        for op in LINEAR
        for value in ("1", True, float("inf"), torch.ones(1))
    },
    "key heads that value heads cannot share": Wrong(
        CALLS["gated_delta_rule"].but(q=torch.ones(5, 3, 6), k=torch.ones(5, 3, 6)),
        ("gated_delta_rule: 4 value heads", "cannot be shared evenly by 3 key heads"),
    ),
    "a gate in double beside tokens of fp32": Wrong(
        CALLS["simple_gla"].but(g=torch.ones(5, 4, dtype=torch.float64)), ("simple_gla: g is float64", "float32")
    ),
    "a scale that is a flag": Wrong(CALLS["attention"].but(softmax_scale=True), ("softmax_scale is True",)),
}

ones = torch.ones
LINEAR_TOKEN = {"S": ones(4, 3, 2), "q": ones(4, 3), "k": ones(4, 3), "v": ones(4, 2)}
STEPS: dict[str, tuple[Any, dict[str, Tensor]]] = {
    "ssd_step": (
        refs.ssd_step,
        {"h": ones(4, 2, 3), "x": ones(4, 2), "dt": ones(4), "A": ones(4), "B": ones(4, 3), "C": ones(4, 3)},
    ),
    "selective_scan_step": (
        refs.selective_scan_step,
        {"h": ones(4, 3), "u": ones(4), "delta": ones(4), "A": ones(4, 3), "B": ones(4, 3), "C": ones(4, 3)},
    ),
    "causal_conv1d_step": (
        refs.causal_conv1d_step,
        {"state": ones(4, 2), "x": ones(4), "weight": ones(4, 3), "bias": ones(4)},
    ),
    **{
        f"{op}_step": (getattr(refs, f"{op}_step"), {**LINEAR_TOKEN, **more})
        for op, more in (
            ("linear_attention", {}),
            ("simple_gla", {"g": ones(4)}),
            ("retention", {"decay": ones(4)}),
            ("delta_rule", {"beta": ones(4)}),
            ("gated_delta_rule", {"g": ones(4), "beta": ones(4)}),
            ("kda", {"g": ones(4, 3), "beta": ones(4)}),
        )
    },
}


def of_each_step() -> dict[str, Wrong]:
    found: dict[str, Wrong] = {}
    for function, (step, arguments) in STEPS.items():
        one = Call(step, dict(arguments), function)
        for name, tensor in arguments.items():
            shapes = {"of two rows": tensor[:2], "with an axis more": tensor[..., None]}
            for what, wrong in shapes.items():
                found[f"{function}: {name} {what}"] = Wrong(
                    one.but(**{name: wrong}), (f"{function}: ", name, "expected")
                )
            integers = one.but(**{name: tensor.int()})
            found[f"{function}: {name} of integers"] = Wrong(integers, (f"{function}: {name} is int32", "float32"))
            numbers = one.but(**{name: [1.0]})
            found[f"{function}: {name} is a list"] = Wrong(numbers, (f"{function}: {name} is a list", "a tensor"))
        found[f"{function}: unknown name"] = Wrong(one.but(alpha=1), (f"{function}: alpha is no argument", "It takes "))
        found[f"{function}: missing"] = Wrong(
            one.without(next(n for n in ("x", "u", "v") if n in arguments)), ("is missing", function)
        )
    return found


rows: Any = refs.split_sequences
join: Any = refs.join_sequences
time: Any = refs.over_time
X = torch.ones(5, 2)


def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return h, x


SEGSUMS: dict[str, Any] = {"segsum": refs.segsum, "segsum_unstable": refs.segsum_unstable}
SLOTS: dict[str, Wrong] = {
    f"{op}: slots {slots}": Wrong(CALLS[f"{op}_update"].but(state_indices=torch.tensor(slots)), says)
    for op in ON_POOLS
    for slots, says in (
        ([0, 3], (f"{op}_update: state_indices[1] is 3 but states has 3 slots", "-1 is for a request that has none")),
        ([-2, 0], ("state_indices[0] is -2",)),
        ([1, 1], ("state_indices gives slot 1 to requests 0 and 1", "-1 is for those that only pad")),
    )
}
TOOLS: dict[str, Wrong] = {
    **{
        f"{name} of {what}": Wrong(partial(f, x), (f"{name}: x ", says))
        for name, f in SEGSUMS.items()
        for what, x, says in (
            ("integers", torch.arange(3), "is int64"),
            ("flags", torch.ones(3, dtype=torch.bool), "is bool"),
            ("a list", [1.0, 2.0], "is a list"),
            ("None", None, "is None"),
            ("no axis", torch.tensor(1.0), "has no axis"),
        )
    },
    "split without offsets": Wrong(lambda: rows(X), ("split_sequences: cu_seqlens is missing",)),
    "split a list": Wrong(lambda: rows([1, 2], CU), ("split_sequences: x is a list", "(t, ...)")),
    "split a number": Wrong(lambda: rows(torch.tensor(1), CU), ("x is a tensor without axes",)),
    "split by lengths": Wrong(lambda: rows(X, [2, 3]), ("split_sequences: cu_seqlens is a list",)),
    "split past the end": Wrong(lambda: rows(X[:4], CU), ("split_sequences: cu_seqlens ends at 5", "x has 4 tokens")),
    "split from 1": Wrong(lambda: rows(X, CU + 1), ("split_sequences: cu_seqlens starts at 1",)),
    "join one tensor": Wrong(lambda: join(X, like=X), ("join_sequences: pieces is a Tensor", "for each sequence")),
    "join None": Wrong(lambda: join(None, like=X), ("join_sequences: pieces is None",)),
    "join numbers": Wrong(lambda: join([1, 2], like=X), ("join_sequences: piece 0 is an int", "(t, ...)")),
    "join without like": Wrong(lambda: join([X]), ("join_sequences: like is missing",)),
    "join like a shape": Wrong(lambda: join([X], like=(5, 2)), ("join_sequences: like is a tuple",)),
    "join too many rows": Wrong(lambda: join([X, X], like=X), ("pieces have 10 rows", "like has 5")),
    "join another width": Wrong(lambda: join([X[:, :1]], like=X), ("piece 0 is (5, 1)", "like is (5, 2)")),
    "no step over time": Wrong(lambda: time(None, X[0], X), ("over_time: step is None", "a function")),
    "nothing over time": Wrong(lambda: time(step, X[0]), ("over_time: no tokens came",)),
    "a list over time": Wrong(lambda: time(step, X[0], [1, 2]), ("over_time: token tensor 0 is a list",)),
    "a step of too few arguments": Wrong(
        lambda: time(step, X[0], X, X),
        ("over_time: step takes (h: ", "the state and 2 rows, one of each token tensor", "too many positional"),
    ),
    "a step of too many arguments": Wrong(
        lambda: time(lambda h, x, a: (h, x), X[0], X),
        ("over_time: step takes (h, x, a)", "the state and 1 row", "missing a required argument: 'a'"),
    ),
    "a step that returns one tensor": Wrong(
        lambda: time(lambda h, x: h, X[0], X), ("over_time: step returned a Tensor but (state, y) was expected",)
    ),
    "a step that returns three": Wrong(
        lambda: time(lambda h, x: (h, x, x), X[0], X), ("step returned a tuple of 3 but (state, y) was expected",)
    ),
    "uneven rows over time": Wrong(lambda: time(step, X[0], X, X[:3]), ("token tensor 1 has 3 rows", "first has 5")),
}
TABLE = {
    **{f"{name}: {what}": wrong for name, one in CALLS.items() for what, wrong in wrong_calls(one)},
    **of_each_form(),
    **MORE,
    **of_each_step(),
    **SLOTS,
    **TOOLS,
}


@pytest.mark.parametrize(("name", "table"), by_call(TABLE).items())
def test_each_is_refused(name: str, table: dict[str, Wrong]) -> None:
    assert table, name
    assert_all_refused(table)


@pytest.mark.parametrize("one", [*CALLS.values(), *OTHER_FORMS.values()], ids=[*CALLS, *OTHER_FORMS])
def test_what_they_are_made_of_is_correct(one: Call) -> None:
    one.but()()
