"""Measures, at the smallest case of a failure, where a tensor is wrong and by how much."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from packproof.base.axes import is_in_pool, role
from packproof.base.errors import KernelFault
from packproof.base.light_torch import argmax
from packproof.base.wording import plural
from packproof.harness.check.diagnosis.leaks import leak_map
from packproof.harness.check.diagnosis.rows import wrong_rows
from packproof.harness.report.maps import ErrorMap, Evidence, Layout, MapRow, WorstElement
from packproof.properties.bounds import same_bits, score
from packproof.properties.calling import Refusal
from packproof.properties.cases import Case, Sample
from packproof.properties.judgement import Comparison, KernelUnderTest, record_comparisons
from packproof.properties.laws import Property, Violation

_MAX_ROWS, _MAX_COLUMNS = 24, 64
_SAME_FACTOR = 0.01


def measure(
    kernel: KernelUnderTest, law: Property, case: Case, violation: Violation, first_case: Case | None = None
) -> Evidence:
    """The evidence for one violation of a property: error map, worst element, leak map. After a fault only the layout.

    case: the smallest case.
    first_case: the case before it was made smaller.
    """
    evidence = Evidence(Layout.from_promises(case.lengths, case.slack, kernel.promises))
    if violation.text or violation.tensor is None:
        return evidence
    try:
        if failing_comparisons := _failing_comparisons(kernel, law, case, violation):
            scores = _scores(kernel, case, failing_comparisons)
            evidence = replace(
                evidence,
                worst=_worst(failing_comparisons, scores),
                errors=error_map(failing_comparisons, scores, evidence.layout),
                rows=wrong_rows(failing_comparisons, scores),
                factor=_common_factor(failing_comparisons, scores),
            )
        evidence = replace(evidence, leaks=leak_map(kernel, case, violation.tensor, nan=law.perturbs_with_nan))
        if first_case is not None and first_case.lengths != case.lengths:
            evidence = replace(evidence, initial_errors=_first_error_map(kernel, law, first_case))
    except (KernelFault, Refusal):
        pass
    return evidence


def _first_error_map(kernel: KernelUnderTest, law: Property, case: Case) -> ErrorMap | None:
    """The error map of the case that failed first; None if something else fails there."""
    violation = next(law.check(kernel, case), None)
    if violation is None or violation.text:
        return None
    failing_comparisons = _failing_comparisons(kernel, law, case, violation)
    if not failing_comparisons:  # it fails now and then
        return None
    return error_map(
        failing_comparisons,
        _scores(kernel, case, failing_comparisons),
        Layout.from_promises(case.lengths, case.slack, kernel.promises),
    )


def _failing_comparisons(kernel: KernelUnderTest, law: Property, case: Case, violation: Violation) -> list[Comparison]:
    """The comparisons of the tensor, reference and note that failed."""
    with record_comparisons() as all_comparisons:
        for _ in law.check(kernel, case):
            pass
    kind = (violation.tensor, violation.other, violation.note)
    return [c for c in all_comparisons if (c.key, c.baseline_name, c.note) == kind]


def _scores(kernel: KernelUnderTest, case: Case, failing_comparisons: Sequence[Comparison]) -> list[Tensor]:
    sample = kernel.sample(case)
    return [_score(kernel, sample, comparison) for comparison in failing_comparisons]


def _score(kernel: KernelUnderTest, sample: Sample, comparison: Comparison) -> Tensor:
    """Error as a multiple of the budget. If bits had to agree: 0 for equal elements, and the budget is only a scale."""
    if comparison.budget is not None:
        return score(comparison.actual, comparison.baseline.double(), comparison.budget.total)
    differs = ~same_bits(comparison.actual, comparison.baseline)
    limit = kernel.budget(comparison.key, sample).total[comparison.start : comparison.start + len(comparison.actual)]
    if limit.shape != comparison.actual.shape:
        return torch.where(differs, math.inf, 0.0)
    ratio = score(comparison.actual, comparison.baseline.double(), limit)
    return torch.where(differs, torch.where(ratio > 0, ratio, math.inf), 0.0)


def _worst(failing_comparisons: Sequence[Comparison], scores: Sequence[Tensor]) -> WorstElement:
    comparison, ratio = max(zip(failing_comparisons, scores, strict=True), key=lambda pair: float(pair[1].max()))
    index = argmax(ratio)
    actual, expected = float(comparison.actual[index]), float(comparison.baseline[index])
    sequence, position = comparison.rows.locate(index[0] + comparison.start) if index else (-1, -1)
    slot = index[0] + comparison.start if is_in_pool(comparison.rows.axes) else -1
    inner = index if role(comparison.rows.axes) == "shared" and slot < 0 else index[1:]
    location = Violation(comparison.key, sequence, position, inner, slot=slot).location
    terms = () if comparison.budget is None else tuple(comparison.budget.terms(index).items())
    return WorstElement(location, actual, expected, comparison.baseline_name, abs(actual - expected), terms)


def _common_factor(failing_comparisons: Sequence[Comparison], scores: Sequence[Tensor]) -> float | None:
    """The factor of all wrong elements, within a percent: of a forgotten scale, or 0 for a missing term."""
    factors = []
    for comparison, ratio in zip(failing_comparisons, scores, strict=True):
        wrong = ratio > (0 if comparison.budget is None else 1)
        factors += (comparison.actual[wrong].double() / comparison.baseline[wrong].double()).flatten().tolist()
    mean = sum(factors) / len(factors) if len(factors) > 1 else math.nan
    is_common = math.isfinite(mean) and all(abs(x - mean) <= _SAME_FACTOR * abs(mean) for x in factors)
    return mean if is_common else None


def error_map(failing_comparisons: Sequence[Comparison], scores: Sequence[Tensor], layout: Layout) -> ErrorMap:
    """The largest score of each token, or of each element for a tensor without tokens."""
    first_comparison = failing_comparisons[0]
    kind = "slot" if is_in_pool(first_comparison.rows.axes) else role(first_comparison.rows.axes)
    if kind == "token":  # of the tensor's own packing
        layout = replace(layout, lengths=tuple(b - a for a, b in pairwise(first_comparison.rows.offsets)))
    errors: dict[tuple[int, int], float] = {}
    for comparison, ratio in zip(failing_comparisons, scores, strict=True):
        rows = ratio.reshape(len(ratio), -1) if ratio.dim() > 1 or kind != "shared" else ratio.reshape(1, -1)
        for i, row in enumerate(rows.tolist(), start=comparison.start):
            cells = (
                {_cell_index(comparison, i): max(row, default=0.0)}
                if kind == "token"
                else {(i, k): v for k, v in enumerate(row)}
            )
            for cell, value in cells.items():
                errors[cell] = max(value, errors.get(cell, 0.0))
    return _visible_part(first_comparison, kind, errors, layout)


def _cell_index(comparison: Comparison, row: int) -> tuple[int, int]:
    """Sequence and token; slack counts as the last sequence."""
    sequence, position = comparison.rows.locate(row)
    return (sequence if sequence >= 0 else len(comparison.rows.offsets) - 1, position)


def _visible_part(comparison: Comparison, kind: str, errors: dict[tuple[int, int], float], layout: Layout) -> ErrorMap:
    """The part of the map to draw: all rows, or a window around the largest score if they do not fit."""
    if kind == "token":
        sizes = [*layout.lengths, *([layout.slack] if layout.slack else [])]
    else:
        sizes = [0] * (1 + max(j for j, _ in errors))
        for j, k in errors:
            sizes[j] = max(sizes[j], k + 1)
    largest = max(errors, key=lambda cell: errors[cell])
    row_window, column_window = (
        _window(largest[0], len(sizes), _MAX_ROWS),
        _window(largest[1], max(sizes, default=0), _MAX_COLUMNS),
    )
    rows = tuple(
        MapRow(
            _label(kind, i, len(layout.lengths)),
            column_window.start,
            tuple(errors.get((i, k)) for k in column_window if k < sizes[i]),
            tuple(layout.edges(i)) if kind == "token" and i < len(layout.lengths) else (),
        )
        for i in row_window
    )
    columns: Literal["token", "element"] = "token" if kind == "token" else "element"
    omissions = [plural(len(sizes) - len(row_window), "row")] if len(row_window) < len(sizes) else []
    omissions += (
        [f"{columns}s before {column_window.start} and from {column_window.stop} on"]
        if len(column_window) < max(sizes, default=0)
        else []
    )
    return ErrorMap(
        str(comparison.key),
        comparison.baseline_name,
        columns,
        rows,
        comparison.allowed is None,
        " and ".join(omissions),
    )


def _window(centre: int, size: int, max_size: int) -> range:
    start = max(0, min(centre - max_size // 2, size - max_size))
    return range(start, min(size, start + max_size))


def _label(kind: str, row: int, sequences: int) -> str:
    if kind in ("shared", "slot"):
        return f"{'row' if kind == 'shared' else kind} {row}"
    return f"sequence {row}" if row < sequences else "slack"
