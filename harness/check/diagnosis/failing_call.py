"""The plainest call that shows a failure: one call of the kernel with an element far from the float64 reference."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from packproof.base.axes import is_shared
from packproof.base.errors import KernelFault, UsageError
from packproof.harness.check.diagnosis.call_script import FailingCall, call_script
from packproof.harness.check.replay import check_fits, open_replayed, replayed_kernel
from packproof.harness.process import run_on_every_core
from packproof.harness.report.replay_files import read_replay
from packproof.properties.bounds import score
from packproof.properties.calling import Refusal, TensorKey
from packproof.properties.cases import Case, Sample
from packproof.properties.judgement import KernelUnderTest


def script_of_replay(path: str) -> str:
    """A script that makes the failing call of a replay file with torch and the kernel alone.

    The kernel runs in a process of its own to find the call. Raises UsageError if the file is damaged, the kernel is
    not here, or no single call of it is wrong.
    """
    data = read_replay(Path(path))
    units: Sequence[Callable[[], Iterator[str]]] = [partial(_script, data, path)]
    [text] = run_on_every_core(units, data["device"], record_type=str)
    reason, _, script = text.partition("\n")
    if reason:
        raise UsageError(f"{path}: {reason}")
    return script


def _script(data: Mapping[str, Any], path: str) -> Iterator[str]:
    """The reason why there is none, or "", in one line; then the script."""
    try:
        target, _ = open_replayed(data, data["target"], data["device"])
        check_fits(data["case"], target.op, path)
        with replayed_kernel(data, target) as kernel:
            call = failing_call(kernel, data["case"], data["property"])
        yield "\n" + call_script(data["target"], call, data["device"], f"{data['op']}, {data['property']}")
    except UsageError as error:
        yield str(error).replace("\n", " ") + "\n"


def failing_call(kernel: KernelUnderTest, case: Case, property_name: str) -> FailingCall:
    """The first call with an element outside its budget. Raises UsageError if there is none."""
    sample = kernel.sample(case)
    for title, changed, rows_of in _candidates(sample):
        call = _judged(kernel, sample, changed, rows_of)
        if call is not None:
            return FailingCall(changed, title, *call, interpreted=kernel.interpreted)
    raise UsageError(
        f"no single call is wrong: {property_name} compares several; `packproof replay` runs them, "
        "`packproof replay --map` shows what differs"
    )


def _candidates(sample: Sample) -> Iterator[tuple[str, Sample, int | None]]:
    """The call itself, each sequence alone, and each beside NaN, with the sequence that is judged."""
    yield "", sample, None
    for j, length in enumerate(sample.lengths):
        if length and len(sample.lengths) > 1:
            yield f"sequence {j} alone", sample.alone(j), None
    for j, length in enumerate(sample.lengths):
        if length:
            yield f"NaN in all but sequence {j}", sample.keep_only(j, float("nan")), j


def _judged(
    kernel: KernelUnderTest, sample: Sample, changed: Sample, sequence: int | None
) -> tuple[TensorKey | None, tuple[int, ...], float, float, str] | None:
    """The worst element outside its budget, as the fields of a FailingCall; None if all are within."""
    try:
        result = kernel.run(changed)
    except Refusal:
        return None
    except KernelFault as fault:
        return None, (), 0.0, 0.0, str(fault)
    answer = kernel.expect(changed if sequence is None else sample)
    for key, x in sorted(result.items(), key=lambda item: item[0].is_gradient):  # an output is plainer
        axes = changed.axes[key.name]
        if sequence is not None and is_shared(axes):
            continue
        excess = score(x, answer.values[key], answer.budgets[key].total)
        if sequence is not None:
            excess = _only(excess, changed.spans(sequence, axes))
        if excess.numel() and excess.max() > 1:
            index = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
            return key, index, float(answer.values[key][index]), float(answer.budgets[key].total[index]), ""
    return None


def _only(excess: Tensor, spans: Sequence[slice]) -> Tensor:
    """Zeros for all other rows."""
    selected = torch.zeros_like(excess)
    for rows in spans:
        selected[rows] = excess[rows]
    return selected
