"""The double_backward property where a reference has nothing to differentiate."""

import torch
from torch import Tensor

import packproof
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.cases.case import Case
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest, judge_case
from packproof.properties.laws.second_derivative import DOUBLE_BACKWARD
from packproof.refs import split_sequences


def squares(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Without sequences there are no pieces, and what comes back has no graph."""
    pieces = [p.square() for p in split_sequences(x, cu_seqlens)]
    return torch.cat([*pieces, 0 * x[int(cu_seqlens[-1]) :]]) if pieces else torch.zeros(x.shape, dtype=x.dtype)


def squares_with_a_graph(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    return x.square() * (torch.arange(len(x)) < cu_seqlens[-1])[:, None]


SQUARES = packproof.Op("squares", squares, {"x": "t d"}, {"y": "t d"}, sizes=({"d": 3},))


def test_a_reference_without_a_graph_at_zero_sequences() -> None:
    """A failure shrinks through such packs: packproof itself failed there."""
    for kernel in (squares, squares_with_a_graph):
        subject = KernelUnderTest(SQUARES, InProcess(kernel), Promises())
        for lengths in ((), (0,), (2, 1)):
            case = Case(lengths, "float32", (("d", 3),))
            assert judge_case(subject, DOUBLE_BACKWARD, case) == (None, None), (kernel, lengths)


def test_the_terms_that_a_reference_does_not_have_are_detected() -> None:
    """A kernel whose gradient is right and whose second derivative lacks the incoming gradient's part."""

    class Squares(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x.detach() * g

    def kernel(x: Tensor, *, cu_seqlens: Tensor) -> Tensor:
        y: Tensor = Squares.apply(x)
        return y

    subject = KernelUnderTest(SQUARES, InProcess(kernel), Promises())
    violation, _ = judge_case(subject, DOUBLE_BACKWARD, Case((2, 1), "float32", (("d", 3),)))
    assert violation is not None
