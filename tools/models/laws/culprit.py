"""The first module that leaks: its inputs agree with the unchanged pack at the other documents, its output does not.

If nothing leaks, the first module that differs: its inputs agree with the document alone, its output does not.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from packproof.models.laws.isolation import first_leaking_visit, max_abs, with_document_changed
from packproof.models.subjects.conventions import Convention
from packproof.models.subjects.pack import PADDING, Pack
from packproof.models.subjects.subject import Subject
from packproof.models.subjects.watch import tensors_in, watch_modules

_LEAK_HEADING = "first module that leaks: "
_DIFFERENCE_HEADING = "first module that differs from the document alone: "
MODE_HEADING = "first module that differs from plain training: "


@dataclass(frozen=True)
class Culprit:
    """The module where a leak or a difference begins, and the boundary arguments on their way to it."""

    module: str
    """Its name in the model, "" for the model itself."""
    kind: str
    """Its class."""
    received_arguments: tuple[str, ...]
    """The boundary arguments that reached it."""
    last_receivers: Mapping[str, str]
    """For each boundary argument that did not reach it, the innermost enclosing module that received it."""
    heading: str = _LEAK_HEADING

    def lines(self) -> Iterator[str]:
        name = self.module or "the model itself"
        yield f"{self.heading}{name} ({self.kind})"
        if self.received_arguments:
            yield f"    it received {', '.join(self.received_arguments)}"
        for argument, receiver in self.last_receivers.items():
            location = "is not passed on by any module" if receiver == "" else f"was last seen in {receiver}"
            yield f"    {argument} {location}"


def module_in(lines: Iterable[str]) -> str:
    """The module, and its class, in lines with those of a culprit; "" if they name none."""
    headings = (_LEAK_HEADING, _DIFFERENCE_HEADING, MODE_HEADING)
    return next((line.removeprefix(heading) for line in lines for heading in headings if line.startswith(heading)), "")


@dataclass
class _Visit:
    name: str
    kind: str
    inputs: list[Tensor]
    arguments: list[str]
    padding: int
    outputs: list[Tensor] = field(default_factory=list)


def first_leaking_module(
    subject: Subject, convention: Convention, pack: Pack, document: int, seed: int
) -> Culprit | None:
    """Run the pack twice, the second time with this document, or the padding, changed.

    None if no module can be named, for example if the number of tokens is also another size.
    """
    x = subject.input(pack.tokens, seed)
    arguments = subject.arguments(convention, pack)
    with torch.no_grad():
        visits = _visits(subject, convention, x, arguments)
        changed_visits = _visits(
            subject, convention, with_document_changed(x, pack, document, subject, seed), arguments
        )
    other_rows = ((pack.document != document) & (pack.document != PADDING)).cpu()

    def leaks(visit: _Visit, changed_visit: _Visit, roundings: int) -> bool:
        same_inputs = visit.name == changed_visit.name and _tensors_agree(
            visit.inputs, changed_visit.inputs, other_rows, other_rows, roundings
        )
        return same_inputs and not _tensors_agree(
            visit.outputs, changed_visit.outputs, other_rows, other_rows, roundings, visit.padding
        )

    leaking_visit = first_leaking_visit(visits, changed_visits, leaks)
    return _culprit(leaking_visit, visits, arguments) if leaking_visit else None


def first_differing_module(
    subject: Subject, convention: Convention, pack: Pack, document: int, seed: int, roundings: float
) -> Culprit | None:
    """Run the pack, and this document alone. None if no module can be named.

    roundings: the allowed difference, in roundings of the largest value.
    """
    x = subject.input(pack.tokens, seed)
    packed_arguments, alone_arguments = (
        subject.arguments(convention, pack),
        subject.arguments(convention, pack.single_document(document)),
    )
    with torch.no_grad():
        packed_visits = _visits(subject, convention, x, packed_arguments)
        alone_visits = _visits(subject, convention, x[:, pack.rows(document)], alone_arguments)
    document_rows = (pack.document == document).cpu()
    all_rows = document_rows[document_rows]
    for packed_visit, alone_visit in zip(packed_visits, alone_visits, strict=False):
        if packed_visit.name != alone_visit.name:
            return None
        same_inputs = _tensors_agree(packed_visit.inputs, alone_visit.inputs, document_rows, all_rows, roundings)
        if same_inputs and not _tensors_agree(
            packed_visit.outputs, alone_visit.outputs, document_rows, all_rows, roundings, packed_visit.padding
        ):
            return replace(_culprit(packed_visit, packed_visits, packed_arguments), heading=_DIFFERENCE_HEADING)
    return None


def first_leaking_backward(
    subject: Subject, convention: Convention, pack: Pack, pair: tuple[int, int], seed: int
) -> Culprit | None:
    """The first module with a leak in its backward pass; None if no module can be named.

    Such a module turns a zero gradient into a nonzero one. Differentiate the reader's outputs, and look at the tokens
    of the source: the gradients of the module's outputs are zero there, the gradient of an input is not.

    pair: the source and the reader, by document.
    """
    source, reader = pair
    x, arguments = subject.input(pack.tokens, seed), subject.arguments(convention, pack)

    def begin(name: str, module: nn.Module, call_arguments: Any) -> _Visit:
        boundary_names = [n for n, value in arguments.items() if _contains_object(call_arguments, value)]
        return _Visit(name, type(module).__name__, _differentiable(call_arguments), boundary_names, padding=0)

    def end(visit: _Visit, out: Any) -> None:
        visit.outputs = _differentiable(out)

    with torch.enable_grad(), subject.differentiable_input(x) as (model_input, get_leaf):
        with watch_modules(subject.module, begin, end) as visits:
            out = subject.call_with(model_input, arguments, convention)
        model_visit = visits[-1]  # the model's own call ends last
        model_visit.inputs.append(get_leaf())  # in place of token ids, which have no gradient
        rows = pack.rows(reader)
        weight = torch.randn(out[rows].shape, generator=torch.Generator().manual_seed(seed)).to(out)
        tensors = list({id(tensor): tensor for v in visits for tensor in (*v.inputs, *v.outputs)}.values())
        grads = subject.differentiate((out[rows] * weight).sum(), tensors) if tensors else []
    source_rows = (pack.document == source).cpu()
    reaches_source = {id(t): _is_nonzero_at(g, source_rows) for t, g in zip(tensors, grads, strict=True)}
    for visit in visits:
        if any(reaches_source[id(t)] for t in visit.inputs) and not any(reaches_source[id(t)] for t in visit.outputs):
            return _culprit(visit, visits, arguments)
    return None


def _differentiable(value: Any) -> list[Tensor]:
    return [x for x in tensors_in(value) if x.requires_grad]


def _is_nonzero_at(grad: Tensor | None, rows: Tensor) -> bool:
    """Whether a gradient along tokens is nonzero at these rows."""
    axis = next((k for k, size in enumerate(grad.shape) if size == len(rows)), None) if grad is not None else None
    if grad is None or axis is None:
        return False
    return bool((grad.index_select(axis, rows.nonzero().flatten().to(grad.device)) != 0).any())


def _culprit(leaking_visit: _Visit, visits: list[_Visit], arguments: Mapping[str, Any]) -> Culprit:
    boundary_names = [name for name, value in arguments.items() if not isinstance(value, bool)]
    enclosing_visits = [
        v
        for v in visits
        if v.name != leaking_visit.name and (v.name == "" or leaking_visit.name.startswith(f"{v.name}."))
    ]
    enclosing_visits.sort(key=lambda v: len(v.name))
    last_receivers = {}
    for name in boundary_names:
        if name not in leaking_visit.arguments:
            receivers = [v for v in enclosing_visits if name in v.arguments]
            last_receivers[name] = (receivers[-1].name or receivers[-1].kind) if receivers else ""
    return Culprit(
        leaking_visit.name,
        leaking_visit.kind,
        tuple(n for n in boundary_names if n in leaking_visit.arguments),
        last_receivers,
    )


def _visits(subject: Subject, convention: Convention, x: Tensor, arguments: Mapping[str, Any]) -> list[_Visit]:
    """Each call of a module, in the order in which the calls ended."""

    def begin(name: str, module: nn.Module, call_arguments: Any) -> _Visit:
        boundary_names = [n for n, value in arguments.items() if _contains_object(call_arguments, value)]
        padding = int(module.padding[0]) if isinstance(module, nn.Conv1d) else 0  # rows by which its output is longer
        return _Visit(name, type(module).__name__, _copies(call_arguments), boundary_names, padding)

    def end(visit: _Visit, out: Any) -> None:
        visit.outputs = _copies(out)

    with watch_modules(subject.module, begin, end) as visits:
        subject.call_with(x, arguments, convention)
    return visits


def _copies(value: Any) -> list[Tensor]:
    return [x.detach().clone() for x in tensors_in(value)]


def _contains_object(container: Any, value: Any) -> bool:
    """Whether this very object is in the nested container. Bools and ints are never counted."""
    if isinstance(container, Mapping):
        return any(_contains_object(item, value) for item in container.values())
    if isinstance(container, tuple | list):
        return any(_contains_object(item, value) for item in container)
    return container is value and not isinstance(value, bool | int)


def _tensors_agree(
    first_tensors: list[Tensor],
    second_tensors: list[Tensor],
    first_rows: Tensor,
    second_rows: Tensor,
    roundings: float,
    padding: int = 0,
) -> bool:
    """Whether tensors along tokens agree at these rows of each. Tensors without a token axis are ignored.

    roundings: the allowed difference, in roundings of the largest value.
    padding: by how much the token axis of an output is longer, as after a padded Conv1d.
    """
    for a, b in zip(first_tensors, second_tensors, strict=False):
        axis = next((k for k, size in enumerate(a.shape) if size in (len(first_rows), len(first_rows) + padding)), None)
        missing_rows = len(first_rows) - len(second_rows)
        if axis is None or a.dtype != b.dtype or a.dim() != b.dim() or a.shape[axis] - b.shape[axis] != missing_rows:
            continue
        first_values, second_values = _rows_along(a, axis, first_rows), _rows_along(b, axis, second_rows)
        is_equal = first_values.shape != second_values.shape or torch.equal(first_values, second_values)
        if not is_equal and not _within_rounding(first_values, second_values, roundings, (a, b)):
            return False
    return True


def _rows_along(x: Tensor, axis: int, rows: Tensor) -> Tensor:
    return x.index_select(axis, rows.nonzero().flatten().to(x.device)).nan_to_num()


def _within_rounding(x: Tensor, y: Tensor, roundings: float, all_rows: tuple[Tensor, Tensor]) -> bool:
    if not (roundings and x.is_floating_point()):
        return False
    scale = max_abs(x) or max(max_abs(values.nan_to_num()) for values in all_rows)  # zeros have no roundings
    return max_abs(x - y) <= roundings * torch.finfo(x.dtype).eps / 2 * scale
