"""The property reuse: kernels that keep something of an earlier call, wrongly and correctly."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.process.naming import Location
from packproof.museum import controls
from packproof.properties.cases.case import HARD_DECAY, STRONG_GATES, Case
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, judge_case
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.ops.catalogue import OPS

Kernel = Callable[..., Any]


def notes_of(kernel: Kernel, parameters: frozenset[str], **promises: Any) -> set[str]:
    """The notes of the first violations at all cases of the property; a graph that is kept is differentiated twice."""
    op = OPS["causal_conv1d"]
    space = Space(op, "float32", Promises(**promises), parameters)
    subject = KernelUnderTest(op, InProcess(kernel), space.promises)
    cases = PROPERTIES["reuse"].suited(space, list(golden_cases(space)))
    assert cases
    violations = [judge_case(subject, PROPERTIES["reuse"], case)[0] for case in cases]
    return {violation.note for violation in violations if violation}


ARGUMENTS = frozenset({"x", "weight", "activation", "cu_seqlens"})


def keeping(key: Callable[..., tuple[object, ...]]) -> Kernel:
    """A convolution that returns what it returned in the last call with the same key."""
    kept: list[Any] = [None, None]

    def conv(x: Tensor, weight: Tensor, *, activation: Any = None, cu_seqlens: Tensor) -> Tensor:
        arguments = {"x": x, "weight": weight, "activation": activation, "cu_seqlens": cu_seqlens}
        asks_gradient = x.requires_grad and torch.is_grad_enabled()
        if kept[0] != key(**arguments, asks_gradient=asks_gradient):
            y = refs.causal_conv1d(x, weight, activation=activation, cu_seqlens=cu_seqlens)
            # the tensors are kept with it, so that no later one has their address
            kept[:] = [key(**arguments, asks_gradient=asks_gradient), y, x, weight, cu_seqlens]
        y = kept[1]
        return y * 1

    return conv


def _version(x: Tensor) -> tuple[int, int]:
    return id(x), x._version


def by_all(x: Tensor, weight: Tensor, activation: str | None, cu_seqlens: Tensor, **rest: bool) -> tuple[object, ...]:
    values = tuple(cu_seqlens.tolist())
    return (_version(x), _version(weight), activation, cu_seqlens.dtype, values, rest["asks_gradient"], len(values))


def but(number: int) -> Callable[..., tuple[object, ...]]:
    """The key without its entry of this number."""
    return lambda **arguments: by_all(**arguments)[:number] + by_all(**arguments)[number + 1 :]


@pytest.mark.parametrize(
    ("number", "change"),
    [(0, "with another x"), (1, "with another weight"), (2, "with activation="), (5, "without gradients")],
    ids=["x", "weight", "option", "gradients"],
)
def test_what_is_kept_without_one_argument_fails(number: int, change: str) -> None:
    """The graph is kept with the result, so that the call before may fail already."""
    assert any(change in note for note in notes_of(keeping(but(number)), ARGUMENTS))


def test_what_is_kept_by_all_arguments_passes() -> None:
    assert notes_of(keeping(by_all), ARGUMENTS) == set()


def test_what_is_kept_by_the_values_of_some_arguments_fails() -> None:
    """New tensors with the same values have what was kept, too."""
    results: dict[object, Tensor] = {}

    def conv(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        key = tuple(x.flatten().tolist()), tuple(cu_seqlens.tolist())
        kept_weight = results.setdefault(key, weight.detach().clone())
        return refs.causal_conv1d(x, weight + (kept_weight - weight).detach(), cu_seqlens=cu_seqlens)

    notes = notes_of(conv, frozenset({"x", "weight", "cu_seqlens"}))
    assert notes == {"with another weight, after calls without this change"}


def test_a_case_names_no_other_layout() -> None:
    space = Space(OPS["causal_conv1d"], "float32", Promises())
    cases: list[Case] = PROPERTIES["reuse"].suited(space, list(golden_cases(space)))
    assert 1 <= len(cases) <= 2


def test_an_option_that_adds_an_output_has_its_incoming_gradient() -> None:
    """`return_lse=True` in place of False, judged with a budget: a kernel that rounds in another way each time."""
    calls = count()

    def attention(q: Tensor, *args: Any, **kwargs: Any) -> Any:
        return refs.attention(q * (1 + (next(calls) % 2) * 2**-52), *args, **kwargs)

    op = OPS["attention"]
    space = Space(op, "float64", Promises(), frozenset({*op.inputs, *op.options, "cu_seqlens"}))
    cases = PROPERTIES["reuse"].suited(space, list(golden_cases(space)))
    [case, *_] = [case for case in cases if dict(case.options).get("return_lse") is False]
    subject = KernelUnderTest(op, InProcess(attention), space.promises)
    assert judge_case(subject, PROPERTIES["reuse"], case)[0] is None


@pytest.mark.parametrize(("regime", "seed"), [(STRONG_GATES, 9), (HARD_DECAY, 0), (HARD_DECAY, 6), ("normal", 15)])
def test_steps_stay_steps_where_softplus_is_left_out(regime: str, seed: int) -> None:
    """Beside negative steps, states would grow beyond every number."""
    op, correct = OPS["ssd"], controls()["ssd.correct"]
    function, promises = Location.parse(correct.kernel).load(), Promises(**correct.promises)
    sizes, options = (("h", 1), ("p", 1), ("n", 1), ("g", 1)), (("dt_softplus", True), ("return_final_states", True))
    case = Case((5, 31, 71), "float16", sizes, slack=16, options=options, regime=regime, seed=seed)
    subject = KernelUnderTest(op, InProcess(function), promises)
    assert judge_case(subject, PROPERTIES["reuse"], case)[0] is None


@pytest.mark.parametrize(("buffered", "is_right"), [("", True), ("y", False), ("x", False)])
def test_a_buffer_for_all_calls_that_is_returned_or_saved_fails(buffered: str, is_right: bool) -> None:
    buffers: dict[object, Tensor] = {}

    def kept(name: str, value: Tensor) -> Tensor:
        """In the buffer, if it is for this tensor."""
        if name != buffered:
            return value.clone()
        return buffers.setdefault((value.shape, value.dtype), torch.empty_like(value)).copy_(value).detach()

    class Convolution(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
            ctx.saved = kept("x", x), weight, cu_seqlens
            return kept("y", refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens))

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
            x, weight = (tensor.detach().requires_grad_() for tensor in ctx.saved[:2])
            with torch.enable_grad():
                y = refs.causal_conv1d(x, weight, cu_seqlens=ctx.saved[2])
            return *torch.autograd.grad(y, (x, weight), dy), None

    def conv(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        return Convolution.apply(x, weight, cu_seqlens)

    notes = notes_of(conv, frozenset({"x", "weight", "cu_seqlens"}))
    assert notes == (set() if is_right else {"read after another call"})
