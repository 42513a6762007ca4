"""The finding of a kernel whose declaration loosens its contract. It is known before anything runs."""

from collections.abc import Iterable, Iterator

from packproof.base.names import CONTRACT, EVERY_DTYPE
from packproof.base.wording import printable
from packproof.harness.check.targets.target import CheckTarget
from packproof.harness.report import Cell, CellFinished, Failure, Verdict

JUDGED_BY_CONTRACT = "what the kernel declares is not in force: it was judged by the contract"


def contract_findings(targets: Iterable[CheckTarget]) -> Iterator[CellFinished]:
    """One failed verdict for each kernel that loosens its contract, with both sides of each term."""
    for target in targets:
        if target.conflicts:
            cell = Cell(printable(target.op.name), target.name, CONTRACT, EVERY_DTYPE, target.request.device)
            lines = tuple(printable(term.conflict) for term in target.conflicts)
            failure = Failure((), "", (*lines, JUDGED_BY_CONTRACT), 0, 0)
            yield CellFinished(Verdict(cell, "declared", "failed", 0, 0.0, failure=failure))
