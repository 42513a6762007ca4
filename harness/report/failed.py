"""The exception of a failed check in Python."""

from collections.abc import Sequence

from packproof.base.errors import PackproofError
from packproof.harness.report.events import Verdict


class CheckFailed(PackproofError, AssertionError):
    """A kernel broke a property; the text is the report. It is an AssertionError too.

    verdicts: of every cell of the check, in order, passed ones too; () if no check ran, as in `gradcheck`.

    >>> import packproof, torch
    >>> def tripled(x, cos, sin, *, cu_seqlens):
    ...     return 3 * x
    >>> inputs = {"x": torch.ones(2, 1, 2), "cos": torch.zeros(2, 1), "sin": torch.ones(2, 1)}
    >>> try:
    ...     packproof.gradcheck(tripled, inputs, cu_seqlens=torch.tensor([0, 2]), op="rope")
    ... except packproof.CheckFailed as failed:
    ...     print("y: sequence 0" in str(failed))
    True
    """

    def __init__(self, text: str, verdicts: Sequence[Verdict] = ()) -> None:
        super().__init__(text)
        self.verdicts = tuple(verdicts)
