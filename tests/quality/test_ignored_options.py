"""An option that a kernel accepts without effect is detected, in a fallback for some sizes too, and named."""

from collections.abc import Callable
from typing import Any

import pytest

import packproof
from packproof.properties.ops import OPS
from tests.quality.ignoring_kernels import EVERY, ignoring
from tests.sweeps import sweep

COMMON = [
    ("causal_conv1d", "initial_states"),
    ("ssd", "dt_softplus"),
    ("attention", "window_size"),
    ("rope", "interleaved"),
]
MORE = [
    ("causal_conv1d", "activation"),
    ("ssd", "D"),
    ("attention", "causal"),
    ("attention", "softcap"),
    ("attention", "softmax_scale"),
]


def failure_of(op: str, kernel: Callable[..., Any], dtype: str = "fp32") -> str:
    """The report of the failure of `reference`."""
    options: dict[str, Any] = {"dtypes": [dtype], "properties": ["reference"], "profile": "quick", "device": "cpu"}
    with pytest.raises(packproof.CheckFailed) as caught:
        packproof.check(kernel, op=op, **options)
    return str(caught.value)


@pytest.mark.usefixtures("working_folder")
@sweep("op, name", COMMON, MORE)
def test_an_option_without_effect_is_detected_and_named(op: str, name: str) -> None:
    report = failure_of(op, ignoring(OPS[op], name))
    assert f"{name}=" in report or f"with {name}" in report
    assert " has no effect: the outputs have the same bits with" in report
    assert "; the reference differs by " in report


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize(
    ("op", "name", "where"),
    [
        ("attention", "softcap", lambda arguments: arguments["q"].shape[-1] % 8 != 0),
        pytest.param(
            *("gated_delta_rule", "qk_l2norm", lambda arguments: len(arguments["cu_seqlens"]) > 3),
            marks=pytest.mark.proof,
        ),
        ("causal_conv1d", "bias", lambda arguments: arguments["weight"].shape[1] < 4),
    ],
)
def test_so_is_one_that_a_fallback_ignores_for_some_calls(op: str, name: str, where: Callable[..., bool]) -> None:
    report = failure_of(op, ignoring(OPS[op], name, where))
    assert f"{name}" in report
    assert " has no effect: the outputs have the same bits with" in report


@pytest.mark.usefixtures("working_folder")
def test_one_that_has_an_effect_is_not_named() -> None:
    report = failure_of("causal_conv1d", wrong_but_following)
    assert "has no effect" not in report


def wrong_but_following(x, weight, bias=None, *, cu_seqlens, activation=None):
    return packproof.refs.causal_conv1d(2 * x, weight, bias, cu_seqlens=cu_seqlens, activation=activation)


@pytest.mark.proof
@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("op", "name"), EVERY)
def test_every_option_and_optional_input_without_effect_is_detected(op: str, name: str, dtype: str) -> None:
    failure_of(op, ignoring(OPS[op], name), dtype)
