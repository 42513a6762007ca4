"""The first module whose training step differs from that of plain training: forward, recomputed, or backward."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from packproof.models.laws.culprit import MODE_HEADING
from packproof.models.running.called_module import CalledModule
from packproof.models.running.steps import run_step
from packproof.models.subjects.tested_module import Step, StepPart
from packproof.models.subjects.watch import tensors_in, watch_modules


@dataclass
class _StepVisit:
    name: str
    kind: str
    inputs: list[Tensor]
    outputs: list[Tensor] = field(default_factory=list)
    input_gradients: dict[int, Tensor] = field(default_factory=dict)
    output_gradients: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _Trace:
    forward: Sequence[_StepVisit]
    """The visits of the last forward pass."""
    recomputed: Sequence[_StepVisit]
    """The visits in the backward pass."""
    step: Step


@dataclass(frozen=True)
class _Span:
    """The rows of a micro-batch in the pack that it is compared with."""

    start: int
    tokens: int
    of_tokens: int
    """The rows of the pack."""

    @classmethod
    def of_last_parts(cls, plain_parts: Sequence[StepPart], mode_parts: Sequence[StepPart]) -> "_Span":
        plain, part = plain_parts[-1], mode_parts[-1]
        return cls(part.first_row - plain.first_row, part.call.pack.tokens, plain.call.pack.tokens)

    def of(self, x: Tensor, like: Tensor) -> Tensor:
        """The rows of a tensor of the pack that one of the micro-batch has, along each axis of tokens."""
        for axis, sizes in enumerate(zip(x.shape, like.shape, strict=False)):
            if sizes == (self.of_tokens, self.tokens):
                x = x.narrow(axis, self.start, self.tokens)
        return x


def culprit_lines(
    plain: CalledModule,
    plain_parts: Sequence[StepPart],
    other: CalledModule,
    other_parts: Sequence[StepPart],
    tolerance: float,
) -> Iterator[str]:
    """The first module that differs, and in which pass.

    plain: in plain train mode.
    other: in the mode in question.
    tolerance: how far the tensors of equal modules may be apart, by their norms.
    """
    if other.mode.compiled:
        return
    are_same_parts = len(plain_parts) == len(other_parts)
    plain_trace, mode_trace = _trace(plain, plain_parts), _trace(other, other_parts)
    span = _Span.of_last_parts(plain_parts, other_parts)
    for visit, where in (
        (
            _first_forward(plain_trace.forward, mode_trace.forward, span, tolerance),
            "in the forward pass: its inputs agree, its output does not",
        ),
        _first_recomputed(mode_trace, tolerance),
        (
            _first_backward(plain_trace, mode_trace, tolerance) if are_same_parts else None,
            "in the backward pass: the gradient of its output agrees, those of its inputs or parameters do not",
        ),
    ):
        if visit:
            yield f"{MODE_HEADING}{visit.name or 'the model itself'} ({visit.kind})"
            yield f"    {where}"
            return


def _trace(model: CalledModule, parts: Sequence[StepPart]) -> _Trace:
    forward_ends = list[int]()

    def begin(name: str, module: nn.Module, call_arguments: Any) -> _StepVisit:
        tensors = list(tensors_in(call_arguments))
        visit = _StepVisit(name, type(module).__name__, [x.detach().clone() for x in tensors])
        _record_gradients(tensors, visit.input_gradients)
        return visit

    def end(visit: _StepVisit, out: Any) -> None:
        tensors = list(tensors_in(out))
        visit.outputs = [x.detach().clone() for x in tensors]
        _record_gradients(tensors, visit.output_gradients)

    with watch_modules(model.module, begin, end) as visits:
        step = run_step(model, parts)
    forward_ends = [number + 1 for number, visit in enumerate(visits) if visit.name == ""][: len(parts)]
    previous_end = forward_ends[-2] if len(forward_ends) > 1 else 0
    last_forward = visits[previous_end : forward_ends[-1]]
    return _Trace(last_forward, visits[forward_ends[-1] :], step)


def _record_gradients(tensors: Sequence[Tensor], gradients: dict[int, Tensor]) -> None:
    for number, x in enumerate(tensors):
        if x.requires_grad:
            x.register_hook(partial(_record_gradient, gradients, number))  # type: ignore[no-untyped-call]


def _record_gradient(gradients: dict[int, Tensor], number: int, gradient: Tensor) -> None:
    gradients[number] = gradient.detach().clone()


def _first_forward(
    plain_visits: Sequence[_StepVisit], mode_visits: Sequence[_StepVisit], span: _Span, tolerance: float
) -> _StepVisit | None:
    def agree(plain_tensors: Sequence[Tensor], mode_tensors: Sequence[Tensor]) -> bool:
        rows = [span.of(x, y) for x, y in zip(plain_tensors, mode_tensors, strict=False)]
        return _agree(rows, mode_tensors, tolerance)

    for plain_visit, mode_visit in zip(plain_visits, mode_visits, strict=False):
        if plain_visit.name != mode_visit.name:
            return None
        if agree(plain_visit.inputs, mode_visit.inputs) and not agree(plain_visit.outputs, mode_visit.outputs):
            return mode_visit
    return None


def _first_recomputed(trace: _Trace, tolerance: float) -> tuple[_StepVisit | None, str]:
    """The first module that is recomputed otherwise, and how. If the inputs of one are others, the module around it
    made them so: its own output may have been saved, and be that of before.

    Calls of the same module are recomputed in the order of the forward pass, layer by layer.
    """
    remaining = defaultdict[str, list[_StepVisit]](list)
    for visit in trace.forward:
        remaining[visit.name].append(visit)
    for visit in trace.recomputed:
        before = remaining[visit.name].pop(0) if remaining[visit.name] else None
        if before and not _agree(before.inputs, visit.inputs, tolerance):
            where = f"when it is recomputed: what it passes to {visit.name} is not what it passed before"
            return _enclosing(visit, trace.forward), where
        if before and not _agree(before.outputs, visit.outputs, tolerance):
            return visit, "when it is recomputed: its inputs are those of before, its output is not"
    return None, ""


def _enclosing(visit: _StepVisit, visits: Sequence[_StepVisit]) -> _StepVisit | None:
    """The innermost module around a visited one that was called itself: a list of layers is not."""
    by_name, name = {each.name: each for each in visits}, visit.name
    while name:
        name = name.rpartition(".")[0]
        if name in by_name:
            return by_name[name]
    return None


def _first_backward(plain_trace: _Trace, mode_trace: _Trace, tolerance: float) -> _StepVisit | None:
    """Of nested modules the innermost, of others the last one called."""
    plain_visits, candidates = _with_gradients(plain_trace), list[_StepVisit]()
    for name, visit in _with_gradients(mode_trace).items():
        reference = plain_visits.get(name)
        if reference is None or not _agree_by_number(reference.output_gradients, visit.output_gradients, tolerance):
            continue
        if not (
            _agree_by_number(reference.input_gradients, visit.input_gradients, tolerance)
            and _own_parameters_agree(name, plain_trace.step, mode_trace.step, tolerance)
        ):
            candidates.append(visit)
    return max(candidates, key=lambda visit: visit.name.count(".") + bool(visit.name), default=None)


def _with_gradients(trace: _Trace) -> dict[str, _StepVisit]:
    """The last call of each module with a gradient at its output: reentrant recomputation has them in the backward
    pass alone."""
    visits = [visit for visit in (*trace.forward, *trace.recomputed) if visit.output_gradients]
    return {visit.name: visit for visit in visits}


def _own_parameters_agree(module: str, plain_step: Step, mode_step: Step, tolerance: float) -> bool:
    names = [n for n in plain_step.gradients if n.rpartition(".")[0] == module and n in mode_step.gradients]
    return all(_agree([plain_step.gradients[n]], [mode_step.gradients[n]], tolerance) for n in names)


def _agree_by_number(plain_tensors: Mapping[int, Tensor], mode_tensors: Mapping[int, Tensor], tolerance: float) -> bool:
    numbers = plain_tensors.keys() & mode_tensors.keys()
    return all(_agree([plain_tensors[k]], [mode_tensors[k]], tolerance) for k in numbers)


def _agree(plain_tensors: Sequence[Tensor], mode_tensors: Sequence[Tensor], tolerance: float) -> bool:
    """Whether tensors of equal shapes agree within rounding."""
    for a, b in zip(plain_tensors, mode_tensors, strict=False):
        if a.shape != b.shape or a.is_complex() or b.is_complex():
            continue
        x, y = a.double().nan_to_num(), b.double().nan_to_num()
        if float((x - y).norm()) > tolerance * float(x.norm()):
            return False
    return True
