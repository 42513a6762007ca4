"""The first module that leaks: its inputs agree with the unchanged pack at the other documents, its output does not.

If nothing leaks, the first module that differs: its inputs agree with the document alone, its output does not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from packproof.harness.modules.conventions import Convention
from packproof.harness.modules.isolation import changed, first_that_leaks
from packproof.harness.modules.pack import PADDING, Pack
from packproof.harness.modules.subject import Subject
from packproof.harness.modules.watch import tensors_in, watched

NAMED = "first module that leaks: "
_APART = "first module that differs from the document alone: "


@dataclass(frozen=True)
class Culprit:
    """The module where a leak or a difference begins, and the boundary arguments on their way to it."""

    module: str
    """Its name in the model, "" for the model itself."""
    kind: str
    """Its class."""
    received: tuple[str, ...]
    """The boundary arguments that reached it."""
    last_seen: Mapping[str, str]
    """For each boundary argument that did not reach it, the innermost enclosing module that received it."""
    named: str = NAMED

    def lines(self) -> Iterator[str]:
        name = self.module or "the model itself"
        yield f"{self.named}{name} ({self.kind})"
        if self.received:
            yield f"    it received {', '.join(self.received)}"
        for argument, where in self.last_seen.items():
            place = "is not passed on by any module" if where == "" else f"was last seen in {where}"
            yield f"    {argument} {place}"


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
        before = _visits(subject, convention, x, arguments)
        after = _visits(subject, convention, changed(x, pack, document, subject, seed), arguments)
    others = ((pack.document != document) & (pack.document != PADDING)).cpu()

    def leaks(one: _Visit, other: _Visit, roundings: int) -> bool:
        same = one.name == other.name and _agree(one.inputs, other.inputs, others, others, roundings)
        return same and not _agree(one.outputs, other.outputs, others, others, roundings, one.padding)

    found = first_that_leaks(before, after, leaks)
    return _culprit(found, before, arguments) if found else None


def first_differing_module(
    subject: Subject, convention: Convention, pack: Pack, document: int, seed: int, roundings: float
) -> Culprit | None:
    """Run the pack, and this document alone. None if no module can be named.

    roundings: the allowed difference, in roundings of the largest value.
    """
    x = subject.input(pack.tokens, seed)
    packed, alone = subject.arguments(convention, pack), subject.arguments(convention, pack.alone(document))
    with torch.no_grad():
        before = _visits(subject, convention, x, packed)
        after = _visits(subject, convention, x[:, pack.rows(document)], alone)
    mine = (pack.document == document).cpu()
    every = mine[mine]
    for one, other in zip(before, after, strict=False):
        if one.name != other.name:
            return None
        same = _agree(one.inputs, other.inputs, mine, every, roundings)
        if same and not _agree(one.outputs, other.outputs, mine, every, roundings, one.padding):
            return replace(_culprit(one, before, packed), named=_APART)
    return None


def first_leaking_backward(
    subject: Subject, convention: Convention, pack: Pack, pair: tuple[int, int], seed: int
) -> Culprit | None:
    """The first module with a leak in its backward pass; None if no module can be named.

    At the source document its inputs receive a gradient of the reader's outputs, and its outputs receive none.

    pair: the source and the reader.
    """
    source, reader = pair
    x, arguments = subject.input(pack.tokens, seed), subject.arguments(convention, pack)
    seen: list[tuple[_Visit, list[Tensor], list[Tensor]]] = []

    def begin(name: str, module: nn.Module, given: Any) -> tuple[_Visit, list[Tensor]]:
        had = [n for n, value in arguments.items() if _holds(given, value)]
        return _Visit(name, type(module).__name__, [], had, 0), _differentiable(given)

    def end(visit: tuple[_Visit, list[Tensor]], out: Any) -> None:
        seen.append((*visit, _differentiable(out)))

    with torch.enable_grad(), subject.differentiable(x) as (given, leaf_of):
        with watched(subject.module, begin, end):
            out = subject.call_with(given, arguments, convention)
        seen[-1][1].append(leaf_of())  # the input of the model itself: it got ids, which have no gradient
        rows = pack.rows(reader)
        weight = torch.randn(out[rows].shape, generator=torch.Generator().manual_seed(seed)).to(out)
        tensors = list({id(tensor): tensor for _, ins, outs in seen for tensor in (*ins, *outs)}.values())
        grads = subject.differentiate((out[rows] * weight).sum(), tensors) if tensors else []
    at = (pack.document == source).cpu()
    reached = {id(t): _reaches(g, at) for t, g in zip(tensors, grads, strict=True)}
    for visit, ins, outs in seen:
        if any(reached[id(t)] for t in ins) and not any(reached[id(t)] for t in outs):
            return _culprit(visit, [v for v, _, _ in seen], arguments)
    return None


def _differentiable(value: Any) -> list[Tensor]:
    return [x for x in tensors_in(value) if x.requires_grad]


def _reaches(grad: Tensor | None, rows: Tensor) -> bool:
    """Whether a gradient along tokens is nonzero at these rows."""
    axis = next((k for k, size in enumerate(grad.shape) if size == len(rows)), None) if grad is not None else None
    if grad is None or axis is None:
        return False
    return bool((grad.index_select(axis, rows.nonzero().flatten().to(grad.device)) != 0).any())


def _culprit(leaking: _Visit, visits: list[_Visit], arguments: Mapping[str, Any]) -> Culprit:
    boundary = [name for name, value in arguments.items() if not isinstance(value, bool)]
    around = [v for v in visits if v.name != leaking.name and (v.name == "" or leaking.name.startswith(f"{v.name}."))]
    around.sort(key=lambda v: len(v.name))
    last_seen = {}
    for name in boundary:
        if name not in leaking.arguments:
            having = [v for v in around if name in v.arguments]
            last_seen[name] = (having[-1].name or having[-1].kind) if having else ""
    return Culprit(leaking.name, leaking.kind, tuple(n for n in boundary if n in leaking.arguments), last_seen)


def _visits(subject: Subject, convention: Convention, x: Tensor, arguments: Mapping[str, Any]) -> list[_Visit]:
    """Each call of a module, in the order in which the calls ended."""

    def begin(name: str, module: nn.Module, given: Any) -> _Visit:
        had = [n for n, value in arguments.items() if _holds(given, value)]
        padding = int(module.padding[0]) if isinstance(module, nn.Conv1d) else 0  # rows by which its output is longer
        return _Visit(name, type(module).__name__, _copies(given), had, padding)

    def end(visit: _Visit, out: Any) -> None:
        visit.outputs = _copies(out)

    with watched(subject.module, begin, end) as ended:
        subject.call_with(x, arguments, convention)
    return ended


def _copies(value: Any) -> list[Tensor]:
    return [x.detach().clone() for x in tensors_in(value)]


def _holds(given: Any, value: Any) -> bool:
    """Whether this very object is in the nested container. Bools and ints are never counted."""
    if isinstance(given, Mapping):
        return any(_holds(item, value) for item in given.values())
    if isinstance(given, tuple | list):
        return any(_holds(item, value) for item in given)
    return given is value and not isinstance(value, bool | int)


def _agree(
    one: list[Tensor], other: list[Tensor], rows: Tensor, its_rows: Tensor, roundings: float, padding: int = 0
) -> bool:
    """Whether tensors along tokens agree at these rows of each. Tensors without a token axis are ignored.

    roundings: the allowed difference, in roundings of the largest value.
    padding: by how much the token axis of an output is longer, as after a padded Conv1d.
    """
    for a, b in zip(one, other, strict=False):
        axis = next((k for k, size in enumerate(a.shape) if size in (len(rows), len(rows) + padding)), None)
        fewer = len(rows) - len(its_rows)
        if axis is None or a.dtype != b.dtype or a.dim() != b.dim() or a.shape[axis] - b.shape[axis] != fewer:
            continue
        mine, others = _at(a, axis, rows), _at(b, axis, its_rows)
        alike = mine.shape != others.shape or torch.equal(mine, others)
        if not alike and not _rounding_apart(mine, others, roundings):
            return False
    return True


def _at(x: Tensor, axis: int, rows: Tensor) -> Tensor:
    return x.index_select(axis, rows.nonzero().flatten().to(x.device)).nan_to_num()


def _rounding_apart(one: Tensor, other: Tensor, roundings: float) -> bool:
    if not (roundings and one.is_floating_point()):
        return False
    most = roundings * torch.finfo(one.dtype).eps / 2 * one.abs().max()
    return bool((one - other).abs().max() <= most)
