"""Measures, at the smallest case of a failure, where a tensor is wrong and by how much."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from packproof.harness.diagnosis.leaks import leak_map
from packproof.harness.results.maps import ErrorMap, Evidence, Layout, MapRow, Worst
from packproof.properties.bounds.budget import same_bits, score
from packproof.properties.call import KernelFault, Refused
from packproof.properties.cases.case import Case
from packproof.properties.cases.sample import Sample
from packproof.properties.comparison import Comparison, comparisons
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Property
from packproof.properties.light_torch import argmax
from packproof.properties.violation import Violation
from packproof.refs.axes import in_pool, role
from packproof.refs.wording import counted

_MOST_ROWS, _MOST_COLUMNS = 24, 64


def measure(
    kernel: KernelUnderTest, law: Property, case: Case, violation: Violation, first: Case | None = None
) -> Evidence:
    """The evidence for one violation of a property: error map, worst element, leak map. After a fault only the layout.

    case: the smallest case.
    first_case: the case before it was made smaller.
    """
    found = Evidence(Layout.of(case.lengths, case.slack, kernel.promises))
    if violation.text or violation.tensor is None:
        return found
    try:
        if made := _comparisons(kernel, law, case, violation):
            scores = _scores(kernel, case, made)
            found = replace(found, worst=_worst(made, scores), errors=error_map(made, scores, found.layout))
        found = replace(found, leaks=leak_map(kernel, case, violation.tensor, nan=law.perturbs_with_nan))
        if first is not None and first.lengths != case.lengths:
            found = replace(found, first=_first(kernel, law, first))
    except (KernelFault, Refused):
        pass
    return found


def _first(kernel: KernelUnderTest, law: Property, case: Case) -> ErrorMap | None:
    """The error map of the case that failed first; None if something else fails there."""
    violation = next(law.check(kernel, case), None)
    if violation is None or violation.text:
        return None
    made = _comparisons(kernel, law, case, violation)
    return error_map(made, _scores(kernel, case, made), Layout.of(case.lengths, case.slack, kernel.promises))


def _comparisons(kernel: KernelUnderTest, law: Property, case: Case, violation: Violation) -> list[Comparison]:
    """The comparisons of the tensor, reference and note that failed."""
    with comparisons() as made:
        for _ in law.check(kernel, case):
            pass
    kind = (violation.tensor, violation.other, violation.note)
    return [c for c in made if (c.key, c.other, c.note) == kind]


def _scores(kernel: KernelUnderTest, case: Case, made: Sequence[Comparison]) -> list[Tensor]:
    sample = kernel.sample(case)
    return [_score(kernel, sample, compared) for compared in made]


def _score(kernel: KernelUnderTest, sample: Sample, made: Comparison) -> Tensor:
    """Error as a multiple of the budget. If bits had to agree: 0 for equal elements, and the budget is only a scale."""
    if made.budget is not None:
        return score(made.got, made.want.double(), made.budget.total)
    differs = ~same_bits(made.got, made.want)
    allowed = kernel.budget(made.key, sample).total[made.start : made.start + len(made.got)]
    if allowed.shape != made.got.shape:
        return torch.where(differs, math.inf, 0.0)
    ratio = score(made.got, made.want.double(), allowed)
    return torch.where(differs, torch.where(ratio > 0, ratio, math.inf), 0.0)


def _worst(made: Sequence[Comparison], scores: Sequence[Tensor]) -> Worst:
    compared, ratio = max(zip(made, scores, strict=True), key=lambda pair: float(pair[1].max()))
    index = argmax(ratio)
    got, wanted = float(compared.got[index]), float(compared.want[index])
    sequence, position = compared.rows.locate(index[0] + compared.start) if index else (-1, -1)
    slot = index[0] + compared.start if in_pool(compared.rows.axes) else -1
    inner = index if role(compared.rows.axes) == "shared" and slot < 0 else index[1:]
    place = Violation(compared.key, sequence, position, inner, slot=slot).place
    terms = () if compared.budget is None else tuple(compared.budget.terms(index).items())
    return Worst(place, got, wanted, compared.other, abs(got - wanted), terms)


def error_map(made: Sequence[Comparison], scores: Sequence[Tensor], layout: Layout) -> ErrorMap:
    """The largest score of each token, or of each element for a tensor without tokens."""
    first = made[0]
    kind = "slot" if in_pool(first.rows.axes) else role(first.rows.axes)
    if kind == "token":  # of the tensor's own packing
        layout = replace(layout, lengths=tuple(b - a for a, b in pairwise(first.rows.offsets)))
    found: dict[tuple[int, int], float] = {}
    for compared, ratio in zip(made, scores, strict=True):
        rows = ratio.reshape(len(ratio), -1) if ratio.dim() > 1 or kind != "shared" else ratio[None]
        for i, row in enumerate(rows.tolist(), start=compared.start):
            cells = (
                {_cell(compared, i): max(row, default=0.0)}
                if kind == "token"
                else {(i, k): v for k, v in enumerate(row)}
            )
            for place, value in cells.items():
                found[place] = max(value, found.get(place, 0.0))
    return _drawn(first, kind, found, layout)


def _cell(compared: Comparison, row: int) -> tuple[int, int]:
    """Sequence and token; slack counts as the last sequence."""
    sequence, position = compared.rows.locate(row)
    return (sequence if sequence >= 0 else len(compared.rows.offsets) - 1, position)


def _drawn(compared: Comparison, kind: str, found: dict[tuple[int, int], float], layout: Layout) -> ErrorMap:
    """The part of the map to draw: all rows, or a window around the largest score if they do not fit."""
    if kind == "token":
        sizes = [*layout.lengths, *([layout.slack] if layout.slack else [])]
    else:
        sizes = [1 + max((k for j, k in found if j == i), default=-1) for i in range(1 + max(j for j, _ in found))]
    at = max(found, key=lambda place: found[place])
    top, left = _window(at[0], len(sizes), _MOST_ROWS), _window(at[1], max(sizes, default=0), _MOST_COLUMNS)
    rows = tuple(
        MapRow(
            _label(kind, i, len(layout.lengths)),
            left.start,
            tuple(found.get((i, k)) for k in left if k < sizes[i]),
            tuple(layout.edges(i)) if kind == "token" and i < len(layout.lengths) else (),
        )
        for i in top
    )
    columns: Literal["token", "element"] = "token" if kind == "token" else "element"
    left_out = [counted(len(sizes) - len(top), "row")] if len(top) < len(sizes) else []
    left_out += [f"{columns}s before {left.start} and from {left.stop} on"] if len(left) < max(sizes, default=0) else []
    return ErrorMap(str(compared.key), compared.other, columns, rows, compared.allowed is None, " and ".join(left_out))


def _window(centre: int, size: int, most: int) -> range:
    start = max(0, min(centre - most // 2, size - most))
    return range(start, min(size, start + most))


def _label(kind: str, row: int, sequences: int) -> str:
    if kind in ("shared", "slot"):
        return f"{'row' if kind == 'shared' else kind} {row}"
    return f"sequence {row}" if row < sequences else "slack"
