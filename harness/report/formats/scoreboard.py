"""The verdicts of a run as tables: one for each kernel, with a row per property and a column per dtype."""

from collections.abc import Iterable
from dataclasses import dataclass

from packproof.base.names import EVERY_DTYPE
from packproof.harness.report.events import Verdict
from packproof.harness.report.wording.conclusions import Answer, answers


@dataclass(frozen=True)
class ScoreRow:
    """One property."""

    law: str
    verdicts: tuple[Verdict | None, ...]
    """One for each dtype of the board, None for a dtype without a verdict."""

    @property
    def judged_verdicts(self) -> list[Verdict]:
        """Each verdict once: a single one may cover all dtypes."""
        return list({id(v): v for v in self.verdicts if v}.values())

    @property
    def tiers(self) -> str:
        return ", ".join(dict.fromkeys(v.tier for v in self.judged_verdicts))

    @property
    def is_skipped(self) -> bool:
        return {v.status for v in self.judged_verdicts} == {"skipped"}

    @property
    def examples(self) -> int:
        return sum(v.examples for v in self.judged_verdicts)

    @property
    def share(self) -> str:
        """The number of judged examples, and of drawn ones if it differs."""
        judged_count = sum(v.judged for v in self.judged_verdicts)
        return str(judged_count) if judged_count == self.examples else f"{judged_count} of {self.examples}"

    @property
    def seconds(self) -> float:
        return sum(v.seconds for v in self.judged_verdicts)


@dataclass(frozen=True)
class Board:
    """The table of one kernel."""

    op: str
    target: str
    device: str
    dtypes: tuple[str, ...]
    """The columns."""
    rows: tuple[ScoreRow, ...]
    verdicts: tuple[Verdict, ...]
    """The verdicts of the promised properties."""
    answers: tuple[Answer, ...] = ()
    """The results for unpromised properties. They do not fail the run."""

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """Each reason for incomplete verdicts, with the names of its properties before it."""
        return _reasons(self.verdicts)

    @property
    def reasons_of_judged(self) -> list[tuple[str, str]]:
        """The same, of the properties that are not skipped in every dtype."""
        return _reasons([v for v in self.verdicts if v.cell.law not in self._skipped_laws])

    @property
    def skipped_text(self) -> str:
        """The properties that are skipped in every dtype, in one line with their reasons; "" if there are none."""
        reasons = _reasons([v for v in self.verdicts if v.cell.law in self._skipped_laws])
        names = "; ".join(f"{laws} ({reason})" for laws, reason in reasons)
        return f"{len(self._skipped_laws)} skipped: {names}" if names else ""

    @property
    def _skipped_laws(self) -> set[str]:
        return {row.law for row in self.rows if row.is_skipped}


def _reasons(verdicts: Iterable[Verdict]) -> list[tuple[str, str]]:
    names: dict[str, dict[str, None]] = {}
    for verdict in verdicts:
        if verdict.reason:
            names.setdefault(verdict.reason, {})[verdict.cell.law] = None
    return [(", ".join(laws), reason) for reason, laws in names.items()]


def boards(verdicts: Iterable[Verdict]) -> list[Board]:
    """The tables, in the order of the verdicts."""
    kernels: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        kernels.setdefault((verdict.cell.op, verdict.cell.target, verdict.cell.device), []).append(verdict)
    return [_make_board(*name, tuple(group)) for name, group in kernels.items()]


def _make_board(op: str, target: str, device: str, verdicts: tuple[Verdict, ...]) -> Board:
    """The table of one kernel: rows for the promised properties, and answers for the unpromised ones."""
    promised = tuple(v for v in verdicts if v.cell.counts)
    unpromised = [v for v in verdicts if not v.cell.counts]
    dtypes = tuple(d for d in dict.fromkeys(v.cell.dtype for v in verdicts) if d != EVERY_DTYPE) or (EVERY_DTYPE,)
    by_law_and_dtype = {(v.cell.law, v.cell.dtype): v for v in promised}

    def row_of(law: str) -> ScoreRow:
        shared_verdict = by_law_and_dtype.get((law, EVERY_DTYPE))
        return ScoreRow(law, tuple(by_law_and_dtype.get((law, dtype), shared_verdict) for dtype in dtypes))

    rows = tuple(row_of(law) for law in dict.fromkeys(v.cell.law for v in promised))
    return Board(op, target, device, dtypes, rows, promised, tuple(answers(unpromised)))
