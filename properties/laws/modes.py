"""The modes property: without gradients, under autocast and torch.func a kernel computes what it computes elsewhere."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from packproof.base.errors import KernelFault
from packproof.base.law_names import LAWS
from packproof.properties.bounds.budget import Budget
from packproof.properties.bounds.two_runs import budget_of_lower_dtype
from packproof.properties.calling.call import Mode, Refusal
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.case import Case
from packproof.properties.cases.drawing import dtype_of
from packproof.properties.cases.result_tensors import Tensors, tensors_by_key
from packproof.properties.cases.sample import Sample
from packproof.properties.judgement.comparison import Comparison, Origin
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Illustration, Property
from packproof.properties.laws.torch_integration import smallest_cases
from packproof.properties.laws.violation import Violation

_WITHOUT_GRADIENTS: tuple[Mode, ...] = ("no_grad", "inference_mode", "torch.vmap")
_TRANSFORMED: tuple[Mode, ...] = ("torch.func.vjp", "torch.vmap")
_AUTOCAST: dict[Mode, torch.dtype] = {"autocast to bfloat16": torch.bfloat16, "autocast to float16": torch.float16}
_DTYPES_DIFFER = ("dtype", "scalar type", "scalartype", "half", "bfloat16")  # words of torch's errors for operands


def _modes(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    sample = kernel.sample(case)
    plain = kernel.cached_run(sample)
    yield from _compare_without_gradients(kernel, sample, plain, "no_grad", "")
    if kernel.runner.device == "cpu" or not case.present:  # on a GPU a new process takes seconds
        yield from _compare_in_a_new_process(kernel, sample, plain)
    else:
        yield from _compare_without_gradients(kernel, sample, plain, "inference_mode", "")
    for mode, dtype in _AUTOCAST.items():
        if sample.token_dtype in (torch.float32, dtype):
            with kernel.optional(f"under {mode}", backward=True, words=_DTYPES_DIFFER):
                yield from _compare_autocast(kernel, sample, plain, mode, dtype)


def _compare_without_gradients(
    kernel: KernelUnderTest, sample: Sample, plain: Tensors, mode: Mode, moment: str
) -> Iterator[Violation]:
    note = f"under torch.{mode}{moment}"
    with kernel.optional(note):
        for key, x in _run(kernel, sample, mode, note).items():
            yield from kernel.agree(key, x, plain[key], Origin(sample), exact=False, other="before", note=note)


def _compare_in_a_new_process(kernel: KernelUnderTest, sample: Sample, plain: Tensors) -> Iterator[Violation]:
    """A process that evaluates first, and trains then: autograd refuses inference tensors that a kernel has kept.

    Other calls have processes of their own, where no such tensors are.
    """
    kernel.runner.restart()
    try:
        moment = ", in the first call of a process"
        yield from _compare_without_gradients(kernel, sample, plain, "inference_mode", moment)
        note = "after a first call under torch.inference_mode"
        for key, x in kernel.run(sample, note=note).items():
            yield from kernel.agree(key, x, plain[key], Origin(sample), exact=False, other="before", note=note)
        for mode in _TRANSFORMED:  # in a process of their own too: a kernel may keep tensors that end with them
            yield from _compare_transformed(kernel, sample, plain, mode)
    finally:
        kernel.runner.restart()


def _compare_transformed(
    kernel: KernelUnderTest, sample: Sample, eager_tensors: Tensors, mode: Mode
) -> Iterator[Violation]:
    """A kernel that raises inside a transformation is not asked: autograd alone does not make it one of torch.func."""
    note = f"under {mode}"
    try:
        tensors = _run(kernel, sample, mode, note)
    except KernelFault as fault:
        if fault.kind != "raised":
            raise
        return
    except Refusal:
        return
    for key, x in tensors.items():
        yield from kernel.agree(key, x, eager_tensors[key], Origin(sample), exact=False, other="before", note=note)


def _run(kernel: KernelUnderTest, sample: Sample, mode: Mode, note: str) -> Tensors:
    """Outputs and gradients in a mode; without gradients where the mode has none.

    Outputs get the dtypes that the op declares: under autocast those of torch's operators differ.
    """
    gradients = kernel.gradients and mode not in _WITHOUT_GRADIENTS
    try:
        result = kernel.call(sample, gradients=kernel.gradients, mode=mode)
        if mode in _AUTOCAST:
            dtypes = {n: dtype_of(sample.op, n, sample.token_dtype_name) for n in sample.outputs}
            result = replace(result, outputs={n: y.to(dtypes[n]) for n, y in result.outputs.items()})
        return tensors_by_key(sample, result, gradients=gradients)
    except (KernelFault, Refusal) as fault:
        fault.note = note
        raise


def _compare_autocast(
    kernel: KernelUnderTest, sample: Sample, plain: Tensors, mode: Mode, dtype: torch.dtype
) -> Iterator[Violation]:
    """Compare by the budget of the lower dtype: torch's operators compute in it, and the kernel may be made of them."""
    note = f"under {mode}"
    for key, x in _run(kernel, sample, mode, note).items():

        def allowed(key: TensorKey = key) -> Budget:
            answer = kernel.expect(sample)
            return answer.budgets[key] + budget_of_lower_dtype(answer, key, dtype, kernel.promises)

        rows = kernel.row_map(key, sample)
        yield from Comparison(key, x, plain[key], rows, allowed, baseline_name="before", note=note).violations()


MODES = Property(
    "modes",
    LAWS["modes"],
    _modes,
    cases=smallest_cases,
    decides_mutants=False,
    quick=True,
    illustration=Illustration(
        "f(S) under no_grad, inference_mode, after it, autocast, torch.func.vjp, vmap = f(S)",
        ("called", "aaa bbbbb cc"),
        ("in a mode", "aaa bbbbb cc"),
        "what rounding to 16 bits may explain, under autocast",
        "Under autocast the kernel may be made of operators that torch runs in 16 bits. So the budget is that of a "
        "kernel that rounds every sum to them, and outputs may be of another dtype. An error for operands of two "
        "dtypes is reported as a refusal.",
    ),
)
