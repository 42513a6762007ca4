"""The properties gradients and modes: incorrect kernels that pass all others, correct ones, and what is declined."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from packproof import refs
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.process.worker import Worker
from packproof.properties.calling.call import Refusal
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space, golden_cases
from packproof.properties.declarations.declaration import describe_kernel
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.comparison import record_comparisons
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, judge_case
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.catalogue import OPS
from tests.properties import gradient_bugs, wrong
from tests.properties.gradient_bugs import BUGS, CORRECT
from tests.sweeps import sweep

Kernel = Callable[..., Any]
WEIGHT_ALONE = {"with a gradient of weight alone", "without a gradient of x"}
NOT_CONTIGUOUS = {"with transposed incoming gradients", "with incoming gradients of one element, as of a sum"}
OTHERS = ("reference", "memory", "strides", "double_backward")


def judgements(
    kernel: Kernel, law: str, dtype: str = "float32", **fields: Any
) -> Iterator[tuple[Violation | None, Refusal | None, KernelUnderTest]]:
    """The judgement of each case of a property, with the kernel and its partial refusals."""
    parameters = frozenset(describe_kernel(kernel)["parameters"])
    op = OPS["attention" if "q" in parameters else "causal_conv1d"]
    space = Space(op, dtype, Promises(), parameters)
    subject = KernelUnderTest(op, InProcess(kernel), space.promises, **fields)
    for case in PROPERTIES[law].suited(space, list(golden_cases(space))):
        yield (*judge_case(subject, PROPERTIES[law], case), subject)


def violations(kernel: Kernel, law: str, dtype: str = "float32") -> list[Violation]:
    return [violation for violation, _, _ in judgements(kernel, law, dtype) if violation]


def fails(kernel: Kernel, law: str) -> bool:
    """Whether a case of the property fails; those after it are not judged."""
    return any(violation for violation, _, _ in judgements(kernel, law))


LISTED_BUGS = [(law, kernel) for law, kernels in BUGS.items() for kernel in kernels]
LISTED_CORRECT = [(law, kernel) for law, kernels in CORRECT.items() for kernel in kernels]


@pytest.mark.parametrize(("law", "kernel"), LISTED_BUGS)
def test_a_bug_that_depends_on_the_call_is_detected(law: str, kernel: Kernel) -> None:
    assert fails(kernel, law)
    other_law = next(name for name in BUGS if name != law)
    if kernel is not gradient_bugs.frozen:  # under no_grad nothing needs a gradient either
        assert not violations(kernel, other_law)


@sweep("law, kernel", LISTED_BUGS[:1], LISTED_BUGS[::8])
def test_no_other_property_detects_it(law: str, kernel: Kernel) -> None:
    assert {name: found for name in OTHERS if (found := violations(kernel, name))} == {}


@sweep("dtype", ["float32", "bfloat16"], ["float16", "float64"])
@pytest.mark.parametrize(("law", "kernel"), LISTED_CORRECT)
def test_a_correct_kernel_passes(law: str, kernel: Kernel, dtype: str) -> None:
    for name in BUGS:
        with record_comparisons() as comparisons:
            assert violations(kernel, name, dtype) == []
        assert comparisons


@pytest.mark.parametrize(
    ("kernel", "law", "notes"),
    [
        (gradient_bugs.refuses_the_weight_alone, "gradients", WEIGHT_ALONE),
        (gradient_bugs.own_backward, "gradients", NOT_CONTIGUOUS),
        (gradient_bugs.raises_under_autocast, "modes", {"under autocast to bfloat16", "under autocast to float16"}),
        (gradient_bugs.joins_fp8_under_autocast, "modes", {"under autocast to bfloat16", "under autocast to float16"}),
    ],
)
def test_a_kernel_may_decline_a_part(kernel: Kernel, law: str, notes: set[str]) -> None:
    declined = set()
    for violation, refusal, subject in judgements(kernel, law):
        assert (violation, refusal) == (None, None)
        declined |= {partial_refusal.note for partial_refusal in subject.refusals}
    assert declined == notes


@pytest.mark.parametrize(
    ("name", "note"), [("of_inference_mode", "after a first call under torch.inference_mode"), ("rope", "")]
)
def test_what_is_kept_of_inference_mode_is_asked_in_a_process_of_its_own(name: str, note: str) -> None:
    """Later calls of the kernel find none of it."""
    op, case = OPS["rope"], Case((3, 2), "float32", (("h", 2), ("k", 8), ("r", 4), ("m", "longest")))
    with Worker(f"packproof.museum.cached_tables:{name}") as worker:
        subject = KernelUnderTest(op, worker, Promises())
        for _ in range(2):
            violation, refusal = judge_case(subject, PROPERTIES["modes"], case)
            assert refusal is None
            assert (violation.note if violation else "") == note
            subject.run(subject.sample(case))


def test_an_error_without_gradients_is_a_failure() -> None:
    def differentiates(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        """Needs a graph for its values."""
        leaf = x.detach().requires_grad_()
        torch.autograd.grad((leaf * leaf).sum(), leaf)
        return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)

    found = violations(differentiates, "modes")
    assert found[0].note == "under torch.no_grad"


def test_a_kernel_without_gradients_is_judged_in_modes_alone() -> None:
    with record_comparisons() as comparisons:
        for violation, refusal, _ in judgements(wrong.capturable, "gradients", gradients=False):
            assert (violation, refusal) == (None, None)
    assert not comparisons
    assert PROPERTIES["gradients"].nothing_to_compare == "gradients are not judged"
    assert any(violation for violation, _, _ in judgements(wrong.modes, "modes", gradients=False))


def test_a_kernel_that_refuses_to_differentiate_is_judged_in_modes() -> None:
    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
            return refs.causal_conv1d(x, weight, cu_seqlens=cu_seqlens)

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Any:
            raise NotImplementedError("no backward pass yet")

    def forward_only(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        return Refusing.apply(x, weight, cu_seqlens)

    for law in BUGS:
        for violation, refusal, _ in judgements(forward_only, law):
            assert violation is None
            assert refusal is not None
            assert refusal.backward


def test_an_op_without_gradients_skips_the_property() -> None:
    op = replace(OPS["causal_conv1d"], constants=frozenset(OPS["causal_conv1d"].inputs))
    space = Space(op, "float32", Promises())
    assert PROPERTIES["gradients"].skip_reason(space) == "causal_conv1d has no input to differentiate by"
    assert PROPERTIES["gradients"].suited(space, list(golden_cases(space))) == []


def test_the_bits_of_a_kernel_that_promises_them_are_compared() -> None:
    """A second backward pass and an accumulated gradient have the operations of the plain call."""

    @gradient_bugs.kernel
    def barely_off(weight: Tensor, ctx: Any, vjp: Any, *dys: Any) -> Any:
        ctx.calls += 1
        return [None if g is None else g * (1 + (ctx.calls - 1) * 2**-23) for g in vjp(*dys)]

    op, case = OPS["causal_conv1d"], Case((3, 0, 2), "float32", (("d", 3), ("w", 2)))
    for promises, is_detected in ((Promises(), False), (Promises(deterministic=True), True)):
        subject = KernelUnderTest(op, InProcess(barely_off), promises)
        violation, _ = judge_case(subject, PROPERTIES["gradients"], case)
        assert (violation is not None) == is_detected


def test_memory_asks_with_the_deterministic_switch() -> None:
    def switched(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        """Another path for deterministic algorithms has no boundaries."""
        offsets = torch.tensor([0, len(x)]) if torch.are_deterministic_algorithms_enabled() else cu_seqlens
        return refs.causal_conv1d(x, weight, cu_seqlens=offsets)

    assert fails(switched, "memory")
