"""Self-test of the evaluator with one correct and one incorrect kernel, for an untested release of torch."""

from dataclasses import replace

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


def require_sound_judgement(sentence: str) -> None:
    """Raises PackproofError, beginning with `sentence`, unless a correct kernel passes and an incorrect one fails.

    The test runs in a fork: here autograd would start threads beside a GPU, and no later fork survives them.
    """
    try:
        report = call_in_fork(_report, _TIME_LIMIT)
    except ForkError as error:
        report = str(error)
    if report:
        raise PackproofError(f"{sentence}, and its self-test fails: {report}. Use torch {tried('torch')}.")


def _report() -> str:
    torch.set_num_threads(1)  # a fork has none of its parent's threads
    return "; ".join(incorrect_verdicts())


def incorrect_verdicts() -> list[str]:
    """The wrong verdicts under this release of torch, one line each."""
    return [
        f"{name} finds {'nothing wrong in an incorrect' if wrong else 'fault with a correct'} convolution"
        for kernel, wrong in ((_correct, False), (_incorrect, True))
        for name, law in ((REFERENCE.name, REFERENCE), (PACKING.name, PACKING))
        for op in (CAUSAL_CONV1D, _OP_WITH_DERIVED_BUDGET)
        if bool(list(law.check(KernelUnderTest(op, InProcess(kernel), Promises()), _CASE))) != wrong
    ]


def _correct(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """Each sequence alone."""
    starts, ends = cu_seqlens.tolist()[:-1], cu_seqlens.tolist()[1:]
    return torch.cat([_convolve(x[start:end], weight) for start, end in zip(starts, ends, strict=True)])


def _incorrect(x: Tensor, weight: Tensor, *, cu_seqlens: Tensor) -> Tensor:
    """The pack as one sequence."""
    return _convolve(x, weight) + 0 * cu_seqlens.sum()


def _convolve(rows: Tensor, weight: Tensor) -> Tensor:
    width = weight.shape[1]
    padded_rows = torch.nn.functional.pad(rows.T[None], (width - 1, 0))
    return torch.nn.functional.conv1d(padded_rows, weight[:, None], groups=len(weight))[0].T if len(rows) else rows
