"""Which rows of the inputs reach which rows of a result: change one row of one input at a time."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from packproof.base.axes import role
from packproof.harness.report.maps import LeakCell, LeakMap, TensorRow
from packproof.properties.bounds import same_bits, score
from packproof.properties.calling import TensorKey
from packproof.properties.cases import Case, Sample
from packproof.properties.judgement import KernelUnderTest

Probe = Literal["other values", "NaN"]

_MAX_ROWS = 64
_MAX_SLACK_ROWS = 4
_MAX_RUNS = 128
_TIME_LIMIT = 2.0


def leak_map(kernel: KernelUnderTest, case: Case, key: TensorKey, *, nan: bool = False) -> LeakMap | None:
    """The leak map of an output or gradient. None for another tensor, and if it has too many rows or two packings.

    nan: also try NaN if other values reach no other sequence.
    """
    sample = kernel.sample(case)
    if key.name not in (sample.wrt if key.is_gradient else sample.outputs if key.kind == "output" else ()):
        return None
    if case.key_lengths is not None or sum(case.lengths) > _MAX_ROWS or len(case.lengths) > _MAX_ROWS:
        return None
    values_map = _LeakSearch(kernel, sample, kernel.sample(_with_new_seed(case)), key).map("other values")
    return _LeakSearch(kernel, sample, None, key).map("NaN") if nan and not values_map.leaks else values_map


def _with_new_seed(case: Case) -> Case:
    """The same call with other values everywhere, incoming gradients of every sequence included."""
    return case.replace(seed=case.seed + 3000, regime="normal" if case.regime == "one-hot" else case.regime)


@dataclasses.dataclass
class _LeakSearch:
    """Computes one leak map."""

    kernel: KernelUnderTest
    sample: Sample
    replacement: Sample | None
    """The sample that provides the changed rows; None for NaN."""
    key: TensorKey

    def map(self, probe: Probe) -> LeakMap:
        kinds = {role(self._axes(n)) for n in self._sources}
        columns = _places(self.sample, kinds)
        rows = _places(self.sample, {role(self.kernel.row_map(self.key, self.sample).axes)})
        before = self._run(self.sample)
        steps = list(self._steps(columns))
        all_inputs_at_once = len(steps) > _MAX_RUNS
        if all_inputs_at_once:
            steps = [(column, [n for c, (n,) in steps if c == column]) for column in columns]
        deadline, results = time.monotonic() + _TIME_LIMIT, dict[TensorRow, list[tuple[list[str], list[bool]]]]()
        for column, names in steps:
            if time.monotonic() > deadline:
                break
            after = self._run(self._with_changed_row(column, names))
            results.setdefault(column, []).append((names, self._reached_rows(before, after, rows)))
        measured_columns = tuple(c for c in columns if c in results)
        cells = tuple(
            tuple(self._cell(c, row, [(n, r[i]) for n, r in results[c]]) for c in measured_columns)
            for i, row in enumerate(rows)
        )
        omissions = _omissions(self.sample, len(columns) - len(measured_columns), all_inputs_at_once)
        return LeakMap(str(self.key), probe, tuple(self._sources), measured_columns, tuple(rows), cells, omissions)

    @property
    def _sources(self) -> list[str]:
        """Inputs with a row per token or sequence; for a gradient, also the incoming gradients."""
        names = [*self.sample.passed_inputs]
        names += [f"incoming {n}" for n in self.sample.cotangents] if self.key.is_gradient else []
        op = self.sample.op
        integers = op.integers if self.replacement is None else (op.pool or ())[:1]
        return [n for n in names if role(self._axes(n)) != "shared" and n not in integers]

    def _axes(self, source: str) -> tuple[str, ...]:
        return self.sample.axes[source.removeprefix("incoming ")]

    def _steps(self, columns: Sequence[TensorRow]) -> Iterator[tuple[TensorRow, list[str]]]:
        for column in columns:
            for name in self._sources:
                if (role(self._axes(name)) == "sequence") == (column.kind == "state"):
                    yield column, [name]

    def _run(self, sample: Sample) -> Tensor:
        return self.kernel.run(sample, gradients=self.key.is_gradient)[self.key]

    def _with_changed_row(self, column: TensorRow, names: Sequence[str]) -> Sample:
        inputs, cotangents = dict(self.sample.inputs), dict(self.sample.cotangents)
        row = _row_index(self.sample, column)
        for name in names:
            tensor_name = name.removeprefix("incoming ")
            kind = "inputs" if tensor_name == name else "cotangents"
            tensors = inputs if tensor_name == name else cotangents
            changed_tensor = tensors[tensor_name].clone()
            changed_tensor[row] = (
                float("nan") if self.replacement is None else getattr(self.replacement, kind)[tensor_name][row]
            )
            tensors[tensor_name] = changed_tensor
        changed_sample = dataclasses.replace(self.sample, inputs=inputs, cotangents=cotangents)
        return changed_sample.with_shares_of(self.sample)

    def _reached_rows(self, before: Tensor, after: Tensor, rows: Sequence[TensorRow]) -> list[bool]:
        """For each row, whether the change shows: beyond the budget, or in a single bit if the kernel promises bits."""
        if self.replacement is None:
            differs = ~torch.isfinite(after) & torch.isfinite(before)
        elif self.kernel.promises.independent and not self.kernel.is_shared(self.key, self.sample):
            differs = ~same_bits(after, before)
        else:
            limit = 2 * self.kernel.budget(self.key, self.sample).total
            differs = score(after, before.double(), limit) > 1
        if rows[0].kind == "shared":
            return [bool(differs.any())]
        return [bool(differs[_row_index(self.sample, row)].any()) for row in rows]

    def _cell(self, column: TensorRow, row: TensorRow, results: Sequence[tuple[list[str], bool]]) -> LeakCell:
        allowed_inputs = {name for names, _ in results for name in names if self._is_allowed(name, column, row)}
        reaching_inputs = tuple(name for names, reaches in results if reaches for name in names)
        # of several inputs changed at once, one allowed input explains the change
        leaking_inputs = tuple(
            n for names, reaches in results if reaches and allowed_inputs.isdisjoint(names) for n in names
        )
        return LeakCell(bool(allowed_inputs), reaching_inputs, leaking_inputs)

    def _is_allowed(self, source: str, column: TensorRow, row: TensorRow) -> bool:
        """Whether packing allows it: only within a sequence, and for a causal op no later value and no earlier
        gradient.
        """
        if "slack" in (column.kind, row.kind):
            return False
        if row.kind == "shared" or column.sequence != row.sequence:
            return row.kind == "shared"
        if not self.sample.causal or self.replacement is None or {column.kind, row.kind} != {"token"}:
            return True
        if not self.key.is_gradient:
            return column.position <= row.position
        return not source.startswith("incoming ") or column.position >= row.position


def _places(sample: Sample, kinds: set[str]) -> list[TensorRow]:
    """The rows of tensors of these roles, in the order of the pack."""
    if kinds == {"shared"}:
        return [TensorRow("shared")]
    places = []
    if "token" in kinds:
        places += [TensorRow("token", j, p) for j, n in enumerate(sample.lengths) for p in range(n)]
        places += [TensorRow("slack", -1, k) for k in range(min(sample.slack, _MAX_SLACK_ROWS))]
    if "sequence" in kinds:
        places += [TensorRow("state", j) for j in range(len(sample.lengths))]
    return places


def _row_index(sample: Sample, row: TensorRow) -> int:
    if row.kind == "state":
        return row.sequence
    return sample.offsets[row.sequence] + row.position  # slack starts at offsets[-1]


def _omissions(sample: Sample, n_unmeasured: int, all_inputs_at_once: bool) -> str:
    notes = ["all inputs of a token were changed together"] if all_inputs_at_once else []
    notes += (
        [f"{n_unmeasured} column{'s were' if n_unmeasured > 1 else ' was'} not measured for want of time"]
        if n_unmeasured
        else []
    )
    notes += [f"slack rows from {_MAX_SLACK_ROWS} on are left out"] if sample.slack > _MAX_SLACK_ROWS else []
    return "; ".join(notes)
