"""The exception by which a check in Python fails."""

from collections.abc import Sequence

from packproof.harness.results.events import Verdict
from packproof.refs.errors import PackproofError


class CheckFailed(PackproofError, AssertionError):
    """A kernel broke a property; the text is the report.

    verdicts: of every cell of the check, in order, those that passed too; () where no check ran, as in `gradcheck`.
    """

    def __init__(self, text: str, verdicts: Sequence[Verdict] = ()) -> None:
        super().__init__(text)
        self.verdicts = tuple(verdicts)
