"""The verdicts of a run as tables: one for each kernel, properties by dtypes."""

from collections.abc import Iterable
from dataclasses import dataclass

from packproof.harness.events import Verdict
from packproof.harness.names import EVERY_DTYPE


@dataclass(frozen=True)
class Row:
    """One property. verdicts: one for each dtype of the board, None where it was not judged."""

    law: str
    verdicts: tuple[Verdict | None, ...]

    @property
    def judged(self) -> list[Verdict]:
        """Each verdict once: one may be about all dtypes."""
        return list({id(v): v for v in self.verdicts if v}.values())

    @property
    def tiers(self) -> str:
        return ", ".join(dict.fromkeys(v.tier for v in self.judged))

    @property
    def examples(self) -> int:
        return sum(v.examples for v in self.judged)

    @property
    def seconds(self) -> float:
        return sum(v.seconds for v in self.judged)


@dataclass(frozen=True)
class Board:
    """One kernel."""

    op: str
    target: str
    device: str
    dtypes: tuple[str, ...]
    rows: tuple[Row, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """Properties that were skipped, each with the reason."""
        return list(dict.fromkeys((v.cell.law, v.reason) for v in self.verdicts if v.reason))

    @property
    def refused(self) -> int:
        return sum(v.refused for v in self.verdicts)


def boards(verdicts: Iterable[Verdict]) -> list[Board]:
    """The tables in the order in which their kernels were judged."""
    kernels: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        kernels.setdefault((verdict.cell.op, verdict.cell.target, verdict.cell.device), []).append(verdict)
    return [_board(*name, tuple(found)) for name, found in kernels.items()]


def _board(op: str, target: str, device: str, verdicts: tuple[Verdict, ...]) -> Board:
    dtypes = tuple(d for d in dict.fromkeys(v.cell.dtype for v in verdicts) if d != EVERY_DTYPE) or (EVERY_DTYPE,)
    found = {(v.cell.law, v.cell.dtype): v for v in verdicts}
    rows = tuple(
        Row(name, tuple(found.get((name, dtype), found.get((name, EVERY_DTYPE))) for dtype in dtypes))
        for name in dict.fromkeys(v.cell.law for v in verdicts)
    )
    return Board(op, target, device, dtypes, rows, verdicts)
