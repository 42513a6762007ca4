"""What came of each convention, in a word and a few more: the rows of a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from packproof.base.names import short_dtype
from packproof.harness.report import Cell, Status, Verdict
from packproof.harness.report.formats import Column, table_line, title_line
from packproof.harness.report.wording import failure_text
from packproof.models.laws.culprit import module_in
from packproof.models.laws.judges import IGNORED, REFUSED
from packproof.models.laws.loss_judge import CROSSING_LABEL

Word = Literal["holds", "differs", "leaks", "crashes", "ignored", "refused", "not judged", "error"]
_GRAVEST_FIRST: tuple[Status, ...] = ("failed", "error", "inconclusive")


@dataclass(frozen=True)
class ConventionOutcome:
    """The result of one convention in one mode and dtype."""

    name: str
    """The convention, and the mode."""
    dtype: str
    """The short name."""
    word: Word
    """The outcome.
    - "holds": no property failed. All were judged, except for padding if the module refuses it;
    - "differs": documents are isolated, but one computes something else than alone;
    - "leaks": a document reaches another one, or padding reaches a document or is NaN;
    - "crashes": a call ends its process, costs it the GPU, or does not return;
    - "ignored": documents reach each other, and the arguments of the convention change no bit;
    - "refused": the module raised an error;
    - "not judged": a property could not be judged;
    - "error": a fault of packproof.
    """
    text: str = ""
    """The first module that leaks or differs, or the reason."""
    failure_text: str = ""
    """The failure in full."""


Key = tuple[str, str]


def key_of(cell: Cell) -> Key:
    """Cells of one outcome have the same key."""
    return cell.op, cell.dtype


def outcomes_of(verdicts: Sequence[Verdict]) -> list[ConventionOutcome]:
    """The outcomes of a run, in the order of its verdicts."""
    groups: dict[Key, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(key_of(verdict.cell), []).append(verdict)
    return [outcome_of(group) for group in groups.values()]


def outcome_of(verdicts: Sequence[Verdict]) -> ConventionOutcome:
    """The outcome of one convention. verdicts: of all its properties, isolation first."""
    decisive_verdict = next((v for status in _GRAVEST_FIRST for v in verdicts if v.status == status), verdicts[0])
    cell, reason = decisive_verdict.cell, decisive_verdict.reason
    name, dtype = cell.op, short_dtype(cell.dtype)
    if decisive_verdict.failure:
        word, text = _words_of_failure(decisive_verdict)
        return ConventionOutcome(name, dtype, word, text, failure_text(decisive_verdict))
    if decisive_verdict.status not in _GRAVEST_FIRST and any(v.status == "passed" for v in verdicts):
        return ConventionOutcome(name, dtype, "holds", next((v.reason for v in verdicts if v.held and v.reason), ""))
    if cell.property == "isolation" and reason.startswith(REFUSED):
        return ConventionOutcome(name, dtype, "refused", reason.removeprefix(REFUSED))
    word = "error" if decisive_verdict.status == "error" else "not judged"
    return ConventionOutcome(name, dtype, word, f"{cell.law}: {reason}")


def _words_of_failure(verdict: Verdict) -> tuple[Word, str]:
    failure = verdict.failure
    assert failure is not None
    if failure.fault:  # the call ended without a result: there is nothing that leaks or differs
        return "crashes" if failure.fault == "crashed" else "refused", failure.lines[0]
    module = module_in(failure.lines).partition(" (")[0]
    place = f"at {module}" if module else failure.tensor
    if verdict.cell.property in ("packing", "modes"):
        return "differs", place
    if verdict.cell.property == "loss":
        return ("leaks", "a label, in the loss") if failure.tensor == CROSSING_LABEL else ("differs", failure.tensor)
    if verdict.cell.property == "padding":
        return "leaks", f"in padding, at {module}" if module else "in padding"
    is_ignored = any(line.startswith(IGNORED) for line in failure.lines)
    return ("ignored", "its arguments change no bit") if is_ignored else ("leaks", place)


def holding_conventions(outcomes: Sequence[ConventionOutcome]) -> list[str]:
    """The names of the conventions that hold in every dtype."""
    others = {outcome.name for outcome in outcomes if outcome.word != "holds"}
    return [name for name in dict.fromkeys(outcome.name for outcome in outcomes) if name not in others]


class OutcomeTable:
    """A table with a row for each convention.

    cells: of the run. They give the columns.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._has_dtypes = len({cell.dtype for cell in cells}) > 1
        names = [self._row_name(cell.op, short_dtype(cell.dtype)) for cell in cells]
        self._columns = (Column("convention", 2 + max(map(len, names))), Column("outcome", 12), Column(""))

    def title(self) -> str:
        return title_line(self._columns)

    def row(self, outcome: ConventionOutcome) -> str:
        return table_line(self._columns, (self._row_name(outcome.name, outcome.dtype), outcome.word, outcome.text))

    def _row_name(self, name: str, dtype: str) -> str:
        return f"{name} {dtype}" if self._has_dtypes else name


def outcome_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """The complete table of a run."""
    table = OutcomeTable([verdict.cell for verdict in verdicts])
    return [table.title(), *map(table.row, outcomes_of(verdicts))]
