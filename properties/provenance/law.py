"""Who made the answer: the kernel's own launches, a library, or a reference.

A call is traced, and repeated with the kernel's own launches doing nothing. If the answer is still correct, they did
not make it. No cell of a plan has this law: `check` judges it beside the others, once for a kernel and dtype.
"""

import inspect
from collections.abc import Iterator, Sequence

from packproof.base.errors import KernelFault
from packproof.base.provenance.computed import Computed, computed_text
from packproof.properties.bounds.oracle import OracleAnswer
from packproof.properties.calling.call import Refusal
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.case import Case
from packproof.properties.cases.result_tensors import Tensors
from packproof.properties.cases.sample import Sample
from packproof.properties.judgement.comparison import Comparison
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Property
from packproof.properties.laws.violation import Violation
from packproof.properties.ops.op import Op

_TRACED = "while its launches were traced"
_OPTION = "with --only-own-kernels, the kernel's own launches alone compute"


def _provenance(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    sample = kernel.sample(case)
    answer = kernel.expect(sample)
    try:
        tensors, computed = _traced_run(kernel, sample)
    except KernelFault as fault:  # it passes elsewhere: a dispatch mode is not for it
        text = str(fault).partition("\n")[0]
        kernel.computed[Computed("nothing", f"that packproof sees, {_TRACED}: {text}", "forward")] = None
        return
    yield from _differences(kernel, sample, answer, tensors)
    launches = [item for item in computed if item.is_own and item.is_launch]
    if launches and _judged(answer) and _unchanged(kernel, sample, answer) == _judged(answer):
        yield Violation(text=_idle_text(launches, computed))


def _own_kernels(kernel: KernelUnderTest, case: Case) -> Iterator[Violation]:
    sample = kernel.sample(case)
    answer = kernel.expect(sample)
    tensors, computed = _traced_run(kernel, sample)
    yield from _differences(kernel, sample, answer, tensors)
    if library_calls := [item for item in computed if not (item.is_own or item.kind == "nothing")]:
        yield Violation(text=f"{_OPTION}, but so does\n" + "\n".join(map(str, library_calls[:4])))
    elif not any(item.is_own for item in computed):
        yield Violation(text=f"{_OPTION}, but it launches none: only what packproof sees counts")
    elif all(item.is_launch for item in computed if item.is_own) and (keys := _unchanged(kernel, sample, answer)):
        names = " and ".join(map(str, keys))
        yield Violation(text=f"{_OPTION}, but without them its {names} is the same")


def _traced_run(kernel: KernelUnderTest, sample: Sample) -> tuple[Tensors, Sequence[Computed]]:
    """The result of a traced call, and who computed it."""
    tensors, result = kernel.run_with_result(
        sample, note=_TRACED, mode="traced", reference=_place_of_reference(kernel.op)
    )
    return tensors, result.computed


def _differences(
    kernel: KernelUnderTest, sample: Sample, answer: OracleAnswer, tensors: Tensors
) -> Iterator[Violation]:
    """A kernel that computes something else while it is traced was traced in vain."""
    for key, x in tensors.items():
        rows = kernel.row_map(key, sample)
        yield from Comparison(key, x, answer.values[key], rows, answer.budgets[key], note=_TRACED).violations()


def _judged(answer: OracleAnswer) -> list[TensorKey]:
    """The tensors whose error bounds are smaller than their values: zeros would not pass for them."""
    return [key for key, x in answer.values.items() if x.numel() and key not in answer.vacuous]


def _unchanged(kernel: KernelUnderTest, sample: Sample, answer: OracleAnswer) -> list[TensorKey]:
    """The judged tensors that are correct although the kernel's own launches did nothing."""
    try:
        tensors = kernel.run(sample, mode="idle", guard=True)
    except (KernelFault, Refusal):
        return []  # it has no answer without them
    finally:
        kernel.runner.restart()  # its caches may hold what the launches left undone
    return [
        key
        for key in _judged(answer)
        if not any(
            Comparison(
                key, tensors[key], answer.values[key], kernel.row_map(key, sample), answer.budgets[key]
            ).violations()
        )
    ]


def _idle_text(launches: Sequence[Computed], computed: Sequence[Computed]) -> str:
    names = ", ".join(dict.fromkeys(item.name for item in launches))
    remaining = computed_text(item for item in computed if item not in launches) or "nothing that packproof sees"
    return f"its own launches do not make its output: without {names} it is the same\ncomputed by {remaining}"


def _place_of_reference(op: Op) -> str:
    """The file and first line of an op's reference, "" if it is no function of Python."""
    code = getattr(inspect.unwrap(op.reference), "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


PROVENANCE = Property(
    "provenance", "The kernel's own launches make its output: without them, the answer is another.", _provenance
)
OWN_KERNELS = Property(
    "provenance", "Nothing but the kernel's own launches computes its values and gradients.", _own_kernels
)
