"""Self-test of the evaluator with one correct and one incorrect kernel, for an untested release of torch."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from packproof.base.errors import PackproofError
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.process.execution.fork import ForkError, call_in_fork
from packproof.properties.cases import Case
from packproof.properties.declarations import Promises
from packproof.properties.judgement import KernelUnderTest
from packproof.properties.laws import PACKING, REFERENCE
from packproof.properties.ops import CAUSAL_CONV1D
from packproof.version import tried

_CASE = Case((3, 0, 2), "float32", tuple(CAUSAL_CONV1D.sizes[0].items()))
_TIME_LIMIT = 120  # for a tenth of a second's work
_OP_WITH_DERIVED_BUDGET = replace(CAUSAL_CONV1D, absolute=None)  # its budget is derived while the reference runs


Kernel = Callable[..., Tensor]


def require_sound_judgement(sentence: str, kernels: "tuple[Kernel, Kernel] | None" = None) -> None:
    """Raises PackproofError, beginning with `sentence`, unless a correct kernel passes and an incorrect one fails.

    kernels: the correct one and the incorrect one; by default two convolutions.

    The test runs in a fork: here autograd would start threads beside a GPU, and no later fork survives them.
    """
    try:
        report = call_in_fork(partial(_report, *(kernels or (correct, incorrect))), _TIME_LIMIT)
    except ForkError as error:
        report = str(error)
    if report:
        raise PackproofError(f"{sentence}, and its self-test fails: {report}. Use torch {tried('torch')}.")


def _report(passing: Kernel, failing: Kernel) -> str:
    torch.set_num_threads(1)  # a fork has none of its parent's threads
    return "; ".join(incorrect_verdicts(passing, failing))


def incorrect_verdicts(passing: Kernel, failing: Kernel) -> list[str]:
    """The wrong verdicts under this release of torch, one line each."""
    return [
        f"{name} finds {'nothing wrong in an incorrect' if wrong else 'fault with a correct'} convolution"
        for kernel, wrong in ((passing, False), (failing, True))
        for name, law in ((REFERENCE.name, REFERENCE), (PACKING.name, PACKING))
        for op in (CAUSAL_CONV1D, _OP_WITH_DERIVED_BUDGET)
        if bool(list(law.check(KernelUnderTest(op, InProcess(kernel), Promises()), _CASE))) != wrong
    ]


def correct(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Each sequence alone."""
    starts, ends = cu_seqlens.tolist()[:-1], cu_seqlens.tolist()[1:]
    return torch.cat([_convolve(x[start:end], weight) for start, end in zip(starts, ends, strict=True)])


def incorrect(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The pack as one sequence."""
    return _convolve(x, weight) + 0 * cu_seqlens.sum()


def _convolve(rows: Tensor, weight: Tensor) -> Tensor:
    width = weight.shape[1]
    padded_rows = torch.nn.functional.pad(rows.T[None], (width - 1, 0))
    return torch.nn.functional.conv1d(padded_rows, weight[:, None], groups=len(weight))[0].T if len(rows) else rows
