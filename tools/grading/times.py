"""Times a submission at one problem, beside the floor, the reference and peers, all by one clock."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from packproof.base.axes import role
from packproof.base.errors import KernelFault, PackproofError
from packproof.bench.kernels import Implementation, costs, spot_check
from packproof.grading.floor import KINDS, cores_of, move
from packproof.grading.problems import Problem
from packproof.grading.record import ProblemTimes
from packproof.grading.stopwatch import Contestant, Seconds, time_in_turns
from packproof.harness.check import CheckRequest
from packproof.harness.check.targets import CheckTarget, open_target
from packproof.harness.process import Worker
from packproof.properties.bounds import oracle_answer
from packproof.properties.calling import Call, MachineLimit, Refusal, Result, TensorKey, moved_rows
from packproof.properties.cases import Sample
from packproof.properties.judgement import Comparison, KernelUnderTest

SUBMISSION, REFERENCE = "submission", "reference"
_MOST_COMPARED = 128  # tokens of a sequence to compare with the reference
_SEQUENCES = 2


class WrongWhileTimed(PackproofError):
    """The submission is incorrect in a timed call. The text says how."""


@dataclass(frozen=True)
class Baselines:
    """The other implementations, opened."""

    reference: CheckTarget | None
    """None on a GPU, where it would take minutes."""
    peers: Mapping[str, CheckTarget]
    """By name."""

    @classmethod
    def open(cls, target: CheckTarget, names: Sequence[str]) -> "Baselines":
        """Import them. Raises UsageError for a peer without this op, or one without an importable module."""
        op, device = target.op, target.request.device

        def opened(kernel: object) -> CheckTarget:
            return open_target(CheckRequest(target=kernel, op=op, device=device))  # type: ignore[arg-type]

        return cls(opened(op.reference) if device == "cpu" else None, {name: opened(name) for name in names})


def time_problem(target: CheckTarget, problem: Problem, baselines: Baselines) -> ProblemTimes:
    """The times at a problem. Raises WrongWhileTimed."""
    sample, gradients = problem.sample, target.gradients
    call = sample.call(gradients=gradients)
    cost = costs(sample, gradients=gradients)["both" if gradients else "forward"]
    times = ProblemTimes(str(problem), bytes=cost.bytes, operations=cost.flops)
    with ExitStack() as stack:
        worker = stack.enter_context(target.worker())
        subject = KernelUnderTest(target.op, worker, target.declared.promises, gradients=gradients)
        try:
            _require_correct(subject, sample, call)
            if worker.run(call).interpreted:
                return replace(times, note="its Triton kernels are interpreted here, so that times would say nothing")
            contestants = {SUBMISSION: Contestant(worker, call)}
            baseline_contestants, notes = _baseline_contestants(baselines, problem, call, stack)
            floors = _floors(stack, target.request.device, cost.bytes, cost.flops if target.op.matmul else 0)
            measured = time_in_turns({**contestants, **baseline_contestants, **floors})
            _require_rows(subject, sample, contestants[SUBMISSION])
        except MachineLimit as limit:
            return replace(times, note=f"not timed: {limit}")
        except (KernelFault, Refusal) as fault:
            raise WrongWhileTimed(str(fault)) from fault
    return _with_floor(_with_times(times, measured, baselines), measured, target.request.device, notes)


def _with_times(times: ProblemTimes, measured: Mapping[str, Seconds], baselines: Baselines) -> ProblemTimes:
    peers = {name: measured[name] for name in baselines.peers if name in measured}
    return replace(times, submission=measured[SUBMISSION], reference=measured.get(REFERENCE), peers=peers)


def _with_floor(
    times: ProblemTimes, measured: Mapping[str, Seconds], device: str, notes: Sequence[str]
) -> ProblemTimes:
    bytes_floor = min(measured[f"floor: {kind}"].least for kind in KINDS) / cores_of(device)
    operations_floor = measured["floor: product"].least if "floor: product" in measured else 0.0
    return replace(
        times,
        floor_seconds=max(bytes_floor, operations_floor),
        floor_of="operations" if operations_floor > bytes_floor else "bytes",
        note="; ".join(notes),
    )


def _baseline_contestants(
    baselines: Baselines, problem: Problem, call: Call, stack: ExitStack
) -> tuple[dict[str, Contestant], list[str]]:
    """The baselines with support for this call, and why others lack it."""
    targets = {**({REFERENCE: baselines.reference} if baselines.reference else {}), **baselines.peers}
    contestants, notes = {}, []
    for name, baseline in targets.items():
        reason = Implementation(name, baseline).unsupported_reason(problem.setting, problem.dtype)
        worker = stack.enter_context(baseline.worker())
        if not reason:
            try:
                worker.run(call)
            except (KernelFault, Refusal) as fault:
                reason = str(fault).partition("\n")[0]
        if reason:
            notes.append(f"{name}: {reason}")
        else:
            contestants[name] = Contestant(worker, call)
    return contestants, notes


def _floors(stack: ExitStack, device: str, n_bytes: int, operations: int) -> dict[str, Contestant]:
    """The least work of a call. Products are counted on a GPU, where they have a rate of their own."""
    amounts = dict.fromkeys(KINDS, n_bytes)
    if operations and device != "cpu":
        amounts["product"] = operations
    worker = stack.enter_context(Worker(f"{move.__module__}:{move.__name__}", device, 120.0))
    call = Call({"x": torch.zeros(1, 1)}, torch.tensor([0, 1], dtype=torch.int32), {}, ("x",))
    return {
        f"floor: {kind}": Contestant(worker, replace(call, options={"kind": kind, "amount": amount}))
        for kind, amount in amounts.items()
    }


def _require_correct(subject: KernelUnderTest, sample: Sample, call: Call) -> None:
    """Judge a call before it is timed."""
    if _is_judged_whole(sample):
        _require_agreement(subject, sample, subject.runner.run(call), sample, None)
    elif verdict := spot_check(subject, sample):
        raise WrongWhileTimed(verdict)


def _is_judged_whole(sample: Sample) -> bool:
    """Whether the whole pack is compared: an output is one of the pack, or none is one of tokens, as losses are."""
    return bool(sample.op.reductions) or not any(role(sample.axes[name]) == "token" for name in sample.outputs)


def _require_rows(subject: KernelUnderTest, sample: Sample, contestant: Contestant) -> None:
    """Compare the last timed call with the reference: short sequences of it, or the whole pack."""
    result = contestant.last_result
    assert result is not None
    moved = _moved(sample, contestant.repeats)
    if _is_judged_whole(sample):
        _require_agreement(subject, moved, result, moved, None)
    elif sequences := _short_sequences(moved, first_only=subject.budget_depends_on_pack):
        _require_agreement(subject, moved, result, moved.select(sequences), sequences)


def _require_agreement(
    subject: KernelUnderTest, sample: Sample, result: Result, part: Sample, sequences: Sequence[int] | None
) -> None:
    """Compare a result with the reference for a part of its pack. Raises WrongWhileTimed.

    sequences: of the part; None for all, with the gradients that they share.
    """
    answer = oracle_answer(part, subject.promises, gradients=subject.gradients)
    for key, value in answer.values.items():
        axes = sample.axes[key.name]
        rows = _tensor(result, key, sample)
        if sequences is not None:
            if role(axes) == "shared":
                continue
            rows = torch.cat([rows[sample.rows(j, axes)] for j in sequences])
        comparison = Comparison(key, rows, value, subject.row_map(key, part), answer.budgets[key])
        for violation in comparison.violations():
            raise WrongWhileTimed("\n".join([f"{key}: in a repeated call", *violation.lines()]))


def _tensor(result: Result, key: TensorKey, sample: Sample) -> Tensor:
    """An output or a gradient of a result; zeros for a gradient out of autograd's reach. Its shape is checked."""
    if key.is_gradient:
        shape, tensor = tuple(sample.inputs[key.name].shape), result.gradients.get(key.name)
    else:
        shape, tensor = sample.shape(key.name), result.outputs[key.name]
    if tensor is not None and tuple(tensor.shape) != shape:
        raise WrongWhileTimed(f"{key} has shape {tuple(tensor.shape)} in a repeated call, expected {shape}")
    return torch.zeros(shape) if tensor is None else tensor


def _moved(sample: Sample, repeats: int) -> Sample:
    """The sample of the last of so many repetitions."""
    name = sample.call(gradients=False).moved_input
    if not name or len(sample.inputs[name]) < 2:
        return sample
    x = sample.inputs[name]
    order = list(range(len(x)))
    for n in range(repeats):
        first, second = moved_rows(n, len(x))
        order[first], order[second] = order[second], order[first]
    return replace(sample, inputs={**sample.inputs, name: x[order]})


def _short_sequences(sample: Sample, *, first_only: bool) -> list[int]:
    """Sequences short enough to be compared; the first one alone where the budget grows with the tokens before."""
    nonempty = [j for j, n in enumerate(sample.lengths) if n]
    if first_only:
        return [j for j in nonempty[:1] if sample.lengths[j] <= _MOST_COMPARED]
    return [j for j in nonempty if sample.lengths[j] <= _MOST_COMPARED][:_SEQUENCES]
