"""Failures grouped by cause: one fault of a kernel fails many cells, and is reported once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from packproof.base.law_names import LAWS
from packproof.base.names import short_dtype
from packproof.harness.report.coverage import refusal_key
from packproof.harness.report.events import Cell, Failure, Verdict
from packproof.properties.cases import shorten

_STRENGTH = {name: rank for rank, name in enumerate(LAWS)}
_MAX_OTHER_PLACES = 6


@dataclass
class Fault:
    """The failures of a kernel with one cause."""

    verdicts: list[Verdict] = field(default_factory=list)
    """Verdicts with a failure, in the order of the events."""

    @property
    def telling(self) -> Verdict:
        """The failure that tells most: a measured one before one that refers to another, then of an unchanged pack
        before a changed one, then without a reason in another cell, then of the strongest property, then with the
        smallest layout."""
        return min(self.verdicts, key=_telling_order)

    @property
    def others(self) -> list[Verdict]:
        """The other failures."""
        return [verdict for verdict in self.verdicts if verdict is not self.telling]

    def other_cells_lines(self, shown: Verdict) -> list[str]:
        """Lines with all cells of the fault, if there are several, and with what differs from the shown failure."""
        if len(self.verdicts) == 1:
            return []
        lines = [f"the same in {len(self.verdicts)} cells: {cells_text([v.cell for v in self.verdicts])}"]
        places: dict[str, list[Cell]] = {}
        for verdict in self.verdicts:
            if (place := place_text(verdict)) != place_text(shown):
                places.setdefault(place, []).append(verdict.cell)
        lines += [f"  {place}: {cells_text(cells)}" for place, cells in [*places.items()][:_MAX_OTHER_PLACES]]
        return lines


class Faults:
    """The faults of a run, in the order in which they were found. A stream of verdicts is added one by one."""

    def __init__(self, verdicts: Iterable[Verdict] = ()) -> None:
        self._faults: dict[object, Fault] = {}
        for verdict in verdicts:
            self.add(verdict)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._faults.values())

    def telling(self, verdict: Verdict) -> Verdict | None:
        """The most telling failure with the cause of this one, added before; None if it is this one."""
        telling = next(fault.telling for fault in self if verdict in fault.verdicts)
        return None if telling is verdict else telling

    def add(self, verdict: Verdict) -> Fault:
        """Add a verdict with a failure; its fault, which may be an earlier one."""
        fault = self._faults.setdefault(_fault_key(verdict) or id(verdict), Fault())
        fault.verdicts.append(verdict)
        return fault


def cause(failure: Failure) -> str:
    """The cause of a failure, equal for failures of a kernel with one fault; "" if it stands for itself.

    Without a tensor it is the words of the failure, with numbers as #.
    """
    words = refusal_key(failure.lines[1]) if failure.lines[1:] and not failure.tensor else ""
    return failure.cause or words


def _fault_key(verdict: Verdict) -> tuple[str, ...]:
    """A key, equal for the failures of one fault; () if a failure stands for itself."""
    cell, text = verdict.cell, cause(verdict.failure) if verdict.failure else ""
    reason = verdict.reason if verdict.status == "expected" else ""
    return (verdict.status, reason, cell.op, cell.target, cell.device, text) if text else ()


def _telling_order(verdict: Verdict) -> tuple[bool, bool, bool, int, int, int]:
    failure = verdict.failure
    assert failure is not None
    strength = _STRENGTH.get(verdict.cell.property, len(_STRENGTH))
    size = sum(failure.lengths), len(failure.lengths)
    return failure.evidence is None, bool(failure.note), bool(verdict.reason), strength, *size


def place_text(verdict: Verdict) -> str:
    """The tensor and layout of a failure: "y at lengths [64, 1]"."""
    failure = verdict.failure
    assert failure is not None
    return f"{f'{failure.tensor} ' if failure.tensor else ''}at lengths {shorten(failure.lengths, 6)}"


def cells_text(cells: Sequence[Cell]) -> str:
    """Properties, each with its dtypes: "packing bf16, fp32; memory bf16"."""
    dtypes: dict[str, list[str]] = {}
    for cell in cells:
        dtypes.setdefault(cell.law, []).append(short_dtype(cell.dtype))
    return "; ".join(f"{law} {', '.join(dict.fromkeys(names))}" for law, names in dtypes.items())
