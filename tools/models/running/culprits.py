"""The first module that leaks: its inputs agree with the unchanged pack at the other documents, its output does not.

If nothing leaks, the first module that differs: its inputs agree with the document alone, its output does not.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from packproof.models.laws.culprit import DIFFERENCE_HEADING, Culprit
from packproof.models.laws.isolation import first_leaking_visit, max_abs
from packproof.models.running.called_module import CalledModule
from packproof.models.subjects.pack import PADDING
from packproof.models.subjects.refusals import failed_call
from packproof.models.subjects.subject import output_rows
from packproof.models.subjects.tested_module import ModuleCall
from packproof.models.subjects.watch import tensors_in, watch_embedding, watch_modules


def lines_of(culprit: Culprit | None) -> tuple[str, ...]:
    return tuple(culprit.lines()) if culprit else ()


@dataclass
class _Visit:
    name: str
    kind: str
    inputs: list[Tensor]
    arguments: list[str]
    padding: int
    outputs: list[Tensor] = field(default_factory=list)


def first_leaking_module(model: CalledModule, call: ModuleCall, changed_x: Tensor, document: int) -> Culprit | None:
    """Run the pack twice, the second time with this document, or the padding, changed.

    None if no module can be named, for example if the number of tokens is also another size.
    """
    arguments = model.arguments(call)
    with torch.no_grad():
        visits = _visits(model, call, call.x, arguments)
        changed_visits = _visits(model, call, changed_x, arguments)
    other_rows = ((call.pack.document != document) & (call.pack.document != PADDING)).cpu()

    def leaks(visit: _Visit, changed_visit: _Visit, roundings: int) -> bool:
        same_inputs = visit.name == changed_visit.name and _tensors_agree(
            visit.inputs, changed_visit.inputs, other_rows, other_rows, roundings
        )
        return same_inputs and not _tensors_agree(
            visit.outputs, changed_visit.outputs, other_rows, other_rows, roundings, visit.padding
        )

    leaking_visit = first_leaking_visit(visits, changed_visits, leaks)
    return _culprit(leaking_visit, visits, arguments) if leaking_visit else None


def first_differing_module(model: CalledModule, call: ModuleCall, document: int, roundings: float) -> Culprit | None:
    """Run the pack, and this document alone. None if no module can be named.

    roundings: the allowed difference, in roundings of the largest value.
    """
    pack = call.pack
    alone = replace(call, pack=pack.single_document(document), x=call.x[:, pack.rows(document)])
    arguments = model.arguments(call)
    with torch.no_grad():
        packed_visits = _visits(model, call, call.x, arguments)
        alone_visits = _visits(model, alone, alone.x, model.arguments(alone))
    document_rows = (pack.document == document).cpu()
    all_rows = document_rows[document_rows]
    for packed_visit, alone_visit in zip(packed_visits, alone_visits, strict=False):
        if packed_visit.name != alone_visit.name:
            return None
        same_inputs = _tensors_agree(packed_visit.inputs, alone_visit.inputs, document_rows, all_rows, roundings)
        if same_inputs and not _tensors_agree(
            packed_visit.outputs, alone_visit.outputs, document_rows, all_rows, roundings, packed_visit.padding
        ):
            return replace(_culprit(packed_visit, packed_visits, arguments), heading=DIFFERENCE_HEADING)
    return None


def first_leaking_backward(model: CalledModule, call: ModuleCall, pair: tuple[int, int], seed: int) -> Culprit | None:
    """The first module with a leak in its backward pass; None if no module can be named.

    Such a module turns a zero gradient into a nonzero one. Differentiate the reader's outputs, and look at the tokens
    of the source: the gradients of the module's outputs are zero there, the gradient of an input is not.

    pair: the source and the reader, by document.
    """
    source, reader = pair
    arguments, x = model.arguments(call), call.x
    is_differentiable = x.is_floating_point()
    x = x.detach().clone().requires_grad_() if is_differentiable else x

    def begin(name: str, module: nn.Module, call_arguments: Any) -> _Visit:
        boundary_names = [n for n, value in arguments.items() if _contains_object(call_arguments, value)]
        return _Visit(name, type(module).__name__, _differentiable(call_arguments), boundary_names, padding=0)

    def end(visit: _Visit, out: Any) -> None:
        visit.outputs = _differentiable(out)

    with torch.enable_grad(), nullcontext([x]) if is_differentiable else watch_embedding(model.module, x) as leaves:
        with watch_modules(model.module, begin, end) as visits:
            return_value = model.return_value(call, x, arguments)
        out = output_rows(model.picked(return_value, call), x.shape[1])
        visits[-1].inputs.append(leaves[0])  # the model's own call ends last; token ids have no gradient
        rows = call.pack.rows(reader)
        weight = torch.randn(out[rows].shape, generator=torch.Generator().manual_seed(seed)).to(out)
        tensors = list({id(tensor): tensor for v in visits for tensor in (*v.inputs, *v.outputs)}.values())
        grads = _gradients((out[rows] * weight).sum(), tensors)
    source_rows = (call.pack.document == source).cpu()
    reaches_source = {id(t): _is_nonzero_at(g, source_rows) for t, g in zip(tensors, grads, strict=True)}
    for visit in visits:
        if any(reaches_source[id(t)] for t in visit.inputs) and not any(reaches_source[id(t)] for t in visit.outputs):
            return _culprit(visit, visits, arguments)
    return None


def _gradients(loss: Tensor, tensors: list[Tensor]) -> tuple[Tensor | None, ...]:
    try:
        return torch.autograd.grad(loss, tensors, allow_unused=True) if tensors else ()
    except Exception as error:
        raise failed_call(error, "in the backward pass, ") from error


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


def _visits(model: CalledModule, call: ModuleCall, x: Tensor, arguments: Mapping[str, Any]) -> list[_Visit]:
    """Each call of a module, in the order in which the calls ended."""

    def begin(name: str, module: nn.Module, call_arguments: Any) -> _Visit:
        boundary_names = [n for n, value in arguments.items() if _contains_object(call_arguments, value)]
        padding = int(module.padding[0]) if isinstance(module, nn.Conv1d) else 0  # rows by which its output is longer
        return _Visit(name, type(module).__name__, _copies(call_arguments), boundary_names, padding)

    def end(visit: _Visit, out: Any) -> None:
        visit.outputs = _copies(out)

    with watch_modules(model.module, begin, end) as visits:
        model.return_value(call, x, arguments)
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
