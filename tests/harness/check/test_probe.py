"""The domain that is found of a kernel with a restriction on its dtype among others, in every order of its checks."""

from collections.abc import Callable
from inspect import signature
from itertools import permutations
from typing import Any

import pytest
import torch

from packproof import refs
from packproof.base.errors import KernelFault
from packproof.harness.check.probing import search
from packproof.harness.check.probing.probe import InferredDomain, probe
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.calling.call import Refusal
from packproof.properties.cases.domain import Domain
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.ops.catalogue import OPS
from tests.sweeps import sweep

Arguments = dict[str, Any]
CONV = OPS["causal_conv1d"]
CHECKS: dict[str, Callable[[Arguments], bool]] = {
    "dtype == bf16": lambda given: given["x"].dtype is torch.bfloat16,
    "d % 8 == 0": lambda given: given["x"].shape[1] % 8 == 0,
    "2 <= w <= 4": lambda given: given["weight"].shape[1] in (2, 3, 4),
    "tokens % 16 == 0": lambda given: len(given["x"]) % 16 == 0,
    "length > 0": lambda given: bool((given["cu_seqlens"].diff() > 0).all()),
    "bias": lambda given: given["bias"] is not None,
    "activation == 'silu'": lambda given: given["activation"] == "silu",
}
TEXTS: dict[str, Callable[[str, Any], str]] = {
    "names the dtype": lambda name, x: f"{name}: shape {tuple(x.shape)} is not supported in {x.dtype}",
    "says the same of all": lambda name, x: "this shape is not supported",
}
BESIDE = [["d % 8 == 0"], ["length > 0"], ["activation == 'silu'"], ["bias"], ["2 <= w <= 4", "tokens % 16 == 0"]]


def conv_with(checks: tuple[str, ...], text: str) -> Callable[..., torch.Tensor]:
    def conv(x: Any, weight: Any, bias: Any = None, *, cu_seqlens: Any, activation: Any = None) -> torch.Tensor:
        for name in checks:
            if not CHECKS[name](locals() | {"bias": bias}):
                raise ValueError(TEXTS[text](name, x))
        y = refs.causal_conv1d(x, weight, bias=bias, activation=activation, cu_seqlens=cu_seqlens)
        assert isinstance(y, torch.Tensor)
        return y

    return conv


def looked_for(kernel: Callable[..., Any], dtype: str) -> InferredDomain:
    """What is found from the first golden case that the kernel refuses."""
    space = Space(CONV, dtype, Promises(), frozenset(signature(kernel).parameters))
    subject = KernelUnderTest(CONV, InProcess(kernel), Promises())
    for case in golden_cases(space):
        try:
            subject.call(subject.sample(case), gradients=True)
        except KernelFault:
            continue
        except Refusal:
            return probe(subject, space, case)
    raise AssertionError("the kernel refuses nothing")


DTYPE = "dtype == bf16"
ORDERS = [checks for beside in BESIDE for checks in permutations([DTYPE, *beside])]
ROWS = [
    (checks, text)
    for checks in ORDERS
    for text in TEXTS
    if text == "names the dtype" or len(checks) == 2  # one line, one text: of two restrictions it cannot be told
]
SAMPLE = [
    *((checks, "names the dtype") for beside in BESIDE for checks in ((DTYPE, *beside), (*beside, DTYPE))),
    ((DTYPE, "length > 0"), "says the same of all"),
    (("bias", DTYPE), "says the same of all"),
]


@sweep("checks,text", SAMPLE[::2], ROWS)
def test_a_dtype_alone_is_found_in_every_order_of_the_checks(checks: tuple[str, ...], text: str) -> None:
    kernel = conv_with(checks, text)
    own = looked_for(kernel, "bfloat16")
    assert (own.accepted_dtypes, set(own.domain.texts)) == ("", {*checks} - {DTYPE})
    other = looked_for(kernel, "float32")
    assert (other.accepted_dtypes, other.domain) == ("bf16", Domain.of(DTYPE))


def test_an_error_in_another_dtype_is_no_proof_that_the_kernel_takes_it() -> None:
    """It takes bf16 alone, of channels in multiples of 8, and breaks down in every other dtype."""

    def conv(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
        if x.dtype is torch.bfloat16 and x.shape[1] % 8:
            raise ValueError("shape: bf16 channels must be a multiple of 8")
        return refs.causal_conv1d((x * 1.0).view(torch.bfloat16).view(x.shape), weight, cu_seqlens=cu_seqlens)

    found = looked_for(conv, "bfloat16")
    assert (found.accepted_dtypes, found.domain.texts) == ("", ("d % 8 == 0",))


@pytest.mark.parametrize(("dtype", "condition"), [("bfloat16", "d % 8 == 0"), ("float32", "d % 4 == 0")])
def test_a_restriction_that_differs_with_the_dtype_is_none_on_the_dtype(dtype: str, condition: str) -> None:
    def conv(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
        if x.shape[1] * x.element_size() % 16:
            raise ValueError(f"rows of {x.dtype} are a multiple of 16 bytes, got shape {tuple(x.shape)}")
        return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)

    found = looked_for(conv, dtype)
    assert (found.accepted_dtypes, found.domain.texts) == ("", (condition,))


def test_what_was_not_asked_is_not_taken_for_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose every refusal differs, so that the search ends at its number of calls."""
    count, calls = 0, 100
    monkeypatch.setattr(search, "_MAX_CALLS", calls)

    def conv(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
        nonlocal count
        key = hash((x.dtype, tuple(x.shape), tuple(weight.shape), tuple(cu_seqlens.tolist())))
        count += 1
        raise ValueError("shape not supported: " + "".join(chr(97 + int(c)) for c in str(abs(key))))

    assert looked_for(conv, "bfloat16") == InferredDomain()
    assert calls <= count < 7 * calls


def test_an_option_that_is_a_tuple_is_a_condition_too() -> None:
    def attend(q: Any, k: Any, v: Any, *, cu_seqlens: Any, window_size: Any = (-1, -1)) -> torch.Tensor:
        if window_size[1] > 0:
            raise ValueError("window_size: a window ends at the token itself")
        y = refs.attention(q, k, v, cu_seqlens=cu_seqlens, window_size=window_size)
        assert isinstance(y, torch.Tensor)
        return y

    op = OPS["attention"]
    space = Space(op, "float32", Promises(), frozenset(signature(attend).parameters))
    refused = next(case for case in golden_cases(space) if dict(case.options).get("window_size") == (3, 2))
    domain = probe(KernelUnderTest(op, InProcess(attend), Promises()), space, refused).domain
    assert domain.texts == ("window_size not in ((3, 2),)",)
    assert not domain.allows(op, refused)
