"""Which rows of the inputs reach which rows of a result: change one row of one input at a time."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from packproof.harness.results.maps import LeakCell, LeakMap, Place
from packproof.properties.bounds.budget import same_bits, score
from packproof.properties.cases.case import Case
from packproof.properties.cases.sample import Sample
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.tensor_key import TensorKey
from packproof.refs.axes import role

Probe = Literal["other values", "NaN"]

_MOST_PLACES = 64
_MOST_SLACK = 4
_MOST_RUNS = 128
_MOST_SECONDS = 2.0


def leak_map(kernel: KernelUnderTest, case: Case, key: TensorKey, *, nan: bool = False) -> LeakMap | None:
    """The leak map of an output or gradient. None for another tensor, and if it has too many rows or two packings.

    nan: also try NaN if other values reach no other sequence.
    """
    sample = kernel.sample(case)
    if key.name not in (sample.wrt if key.is_gradient else sample.outputs if key.kind == "output" else ()):
        return None
    if case.key_lengths is not None or sum(case.lengths) > _MOST_PLACES or len(case.lengths) > _MOST_PLACES:
        return None
    found = _LeakSearch(kernel, sample, kernel.sample(_redrawn(case)), key).map("other values")
    return _LeakSearch(kernel, sample, None, key).map("NaN") if nan and not found.leaks else found


def _redrawn(case: Case) -> Case:
    """The same call with other values everywhere, incoming gradients of every sequence included."""
    return case.replace(seed=case.seed + 3000, regime="normal" if case.regime == "one-hot" else case.regime)


@dataclasses.dataclass
class _LeakSearch:
    """Computes one leak map."""

    kernel: KernelUnderTest
    sample: Sample
    others: Sample | None
    """The sample that provides the changed rows; None for NaN."""
    key: TensorKey

    def map(self, probe: Probe) -> LeakMap:
        kinds = {role(self._axes(n)) for n in self._sources}
        columns = _places(self.sample, kinds)
        rows = _places(self.sample, {role(self.kernel.row_map(self.key, self.sample).axes)})
        before = self._run(self.sample)
        steps = list(self._steps(columns))
        together = len(steps) > _MOST_RUNS
        if together:
            steps = [(column, [n for c, (n,) in steps if c == column]) for column in columns]
        until, done = time.monotonic() + _MOST_SECONDS, dict[Place, list[tuple[list[str], list[bool]]]]()
        for column, names in steps:
            if time.monotonic() > until:
                break
            after = self._run(self._changed(column, names))
            done.setdefault(column, []).append((names, self._reached(before, after, rows)))
        measured = tuple(c for c in columns if c in done)
        cells = tuple(
            tuple(self._cell(c, row, [(n, r[i]) for n, r in done[c]]) for c in measured) for i, row in enumerate(rows)
        )
        cut = _cut(self.sample, len(columns) - len(measured), together)
        return LeakMap(str(self.key), probe, tuple(self._sources), measured, tuple(rows), cells, cut)

    @property
    def _sources(self) -> list[str]:
        """Inputs with a row per token or sequence; for a gradient, also the incoming gradients."""
        names = [*self.sample.inputs]
        names += [f"incoming {n}" for n in self.sample.cotangents] if self.key.is_gradient else []
        op = self.sample.op
        integers = op.integers if self.others is None else (op.pool or ())[:1]
        return [n for n in names if role(self._axes(n)) != "shared" and n not in integers]

    def _axes(self, source: str) -> tuple[str, ...]:
        return self.sample.axes[source.removeprefix("incoming ")]

    def _steps(self, columns: Sequence[Place]) -> Iterator[tuple[Place, list[str]]]:
        for column in columns:
            for name in self._sources:
                if (role(self._axes(name)) == "sequence") == (column.kind == "state"):
                    yield column, [name]

    def _run(self, sample: Sample) -> Tensor:
        return self.kernel.run(sample, gradients=self.key.is_gradient)[self.key]

    def _changed(self, column: Place, names: Sequence[str]) -> Sample:
        inputs, cotangents = dict(self.sample.inputs), dict(self.sample.cotangents)
        row = _row(self.sample, column)
        for name in names:
            plain = name.removeprefix("incoming ")
            kind = "inputs" if plain == name else "cotangents"
            tensors = inputs if plain == name else cotangents
            changed = tensors[plain].clone()
            changed[row] = float("nan") if self.others is None else getattr(self.others, kind)[plain][row]
            tensors[plain] = changed
        return dataclasses.replace(self.sample, inputs=inputs, cotangents=cotangents)

    def _reached(self, before: Tensor, after: Tensor, rows: Sequence[Place]) -> list[bool]:
        """For each row, whether the change shows: beyond the budget, or in a single bit if the kernel promises bits."""
        if self.others is None:
            shows = ~torch.isfinite(after) & torch.isfinite(before)
        elif self.kernel.promises.independent and not self.kernel.shared(self.key, self.sample):
            shows = ~same_bits(after, before)
        else:
            allowed = 2 * self.kernel.budget(self.key, self.sample).total
            shows = score(after, before.double(), allowed) > 1
        if rows[0].kind == "shared":
            return [bool(shows.any())]
        return [bool(shows[_row(self.sample, row)].any()) for row in rows]

    def _cell(self, column: Place, row: Place, found: Sequence[tuple[list[str], bool]]) -> LeakCell:
        allowed = {name for names, _ in found for name in names if self._may(name, column, row)}
        reached = tuple(name for names, shows in found if shows for name in names)
        # of several inputs changed at once, one allowed input explains the change
        leaks = tuple(n for names, shows in found if shows and allowed.isdisjoint(names) for n in names)
        return LeakCell(bool(allowed), reached, leaks)

    def _may(self, source: str, column: Place, row: Place) -> bool:
        """Whether packing allows it: only within a sequence, and for a causal op no later value and no earlier
        gradient.
        """
        if "slack" in (column.kind, row.kind):
            return False
        if row.kind == "shared" or column.sequence != row.sequence:
            return row.kind == "shared"
        if not self.sample.causal or self.others is None or {column.kind, row.kind} != {"token"}:
            return True
        if not self.key.is_gradient:
            return column.position <= row.position
        return not source.startswith("incoming ") or column.position >= row.position


def _places(sample: Sample, kinds: set[str]) -> list[Place]:
    """The rows of tensors of these roles, in the order of the pack."""
    if kinds == {"shared"}:
        return [Place("shared")]
    found = []
    if "token" in kinds:
        found += [Place("token", j, p) for j, n in enumerate(sample.lengths) for p in range(n)]
        found += [Place("slack", -1, k) for k in range(min(sample.slack, _MOST_SLACK))]
    if "sequence" in kinds:
        found += [Place("state", j) for j in range(len(sample.lengths))]
    return found


def _row(sample: Sample, place: Place) -> int:
    if place.kind == "state":
        return place.sequence
    return sample.offsets[place.sequence] + place.position  # slack starts at offsets[-1]


def _cut(sample: Sample, unmeasured: int, together: bool) -> str:
    notes = ["all inputs of a token were changed together"] if together else []
    notes += (
        [f"{unmeasured} column{'s were' if unmeasured > 1 else ' was'} not measured for want of time"]
        if unmeasured
        else []
    )
    notes += [f"slack rows from {_MOST_SLACK} on are left out"] if sample.slack > _MOST_SLACK else []
    return "; ".join(notes)
