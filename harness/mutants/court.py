"""Where the mutants of an op's kernels are judged: by checks that the kernel itself passes, the cheapest first."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from packproof.harness.execute import InProcess
from packproof.harness.judge import broken
from packproof.harness.location import Location
from packproof.harness.mutants.mutant import Mutant, installed
from packproof.harness.own import OwnKernel
from packproof.properties.call import Refused
from packproof.properties.case import Case
from packproof.properties.cases import Space, golden_cases, with_state
from packproof.properties.catalogue import PROPERTIES
from packproof.properties.ops import OPS
from packproof.properties.subject import Subject
from packproof.refs.errors import PackproofError

_PACKAGE = "packproof.kernels."
_DTYPES = ("float32", "bfloat16")
_SHORT_TOKENS = 64  # of the layouts at which properties besides `reference` are tried first
_LIMIT = 2.0, 20.0  # seconds that a check may take, and how many times what it takes the kernel
_LIMIT_UNKNOWN = 300.0

Lines = frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Check:
    """A property at a case. seconds: that the kernel takes; lines: of modules of kernels that it executes."""

    property: str
    case: Case
    seconds: float = 0.0
    lines: Lines = field(default=frozenset(), repr=False)


class Court:
    """The checks of one kernel; to be opened where Triton interprets, in the process that children are forked from."""

    def __init__(self, own: OwnKernel) -> None:
        declared = own.declaration("cpu")
        op = OPS[own.op]
        self.op = own.op
        self._subject = Subject(op, InProcess(Location.parse(own.target).load()), declared.promises)
        self._spaces = [Space(op, dtype, declared.promises) for dtype in _DTYPES]
        reference = sorted(self._proven(_reference(self._spaces)), key=lambda check: check.seconds)
        self.quick = [*reference, *self._proven(_others(self._spaces[0]))]

    def reached(self, mutant: Mutant) -> list[Check]:
        """The quick checks that execute what the mutant has changed."""
        return [c for c in self.quick if any((mutant.module, line) in c.lines for line in mutant.lines)]

    @property
    def thorough(self) -> list[Check]:
        """Every property at every golden case: what a check of the kernel does, without the random cases."""
        found = [Check(name, case) for space in self._spaces for case in golden_cases(space) for name in PROPERTIES]
        return [Check(c.property, case) for c in found for case in _judged_at(c, self._spaces[0])]

    def judge(self, mutant: Mutant, checks: list[Check]) -> Iterator[dict[str, Any]]:
        """In a child of this process: names each check before it runs; the last word says what convicted, if anything.

        A check that takes too long ends the process.
        """
        self._subject.renew()
        started = time.process_time()
        by = ""
        with installed(mutant):
            for check in checks:
                yield {"property": check.property, "case": str(check.case), "op": self.op}
                if by := self._conviction(check):
                    break
        if by and check not in self.quick:
            self._require_innocence(check)
        yield {"by": by, "seconds": time.process_time() - started}

    def _conviction(self, check: Check) -> str:
        limit = _LIMIT[0] + _LIMIT[1] * check.seconds if check.seconds else _LIMIT_UNKNOWN
        signal.setitimer(signal.ITIMER_PROF, limit)
        try:
            violation = broken(self._subject, check.property, check.case)
        except Refused:
            violation = None
        signal.setitimer(signal.ITIMER_PROF, 0)
        return (violation.fault or check.property) if violation else ""

    def _require_innocence(self, check: Check) -> None:
        self._subject.renew()
        try:
            violation = broken(self._subject, check.property, check.case)
        except Refused:
            violation = None
        if violation is not None:
            raise PackproofError(
                f"{self.op} itself breaks {check.property} at {check.case}: mutants of it cannot be judged\n"
                f"    {' '.join(violation.lines())}"
            )

    def _proven(self, checks: list[Check]) -> Iterator[Check]:
        """The checks with their time and lines, once the kernel has passed them."""
        for check in checks:
            with _executed() as lines:
                self._require_innocence(check)
            started = time.process_time()
            self._require_innocence(check)
            yield Check(check.property, check.case, time.process_time() - started, frozenset(lines))


def _reference(spaces: list[Space]) -> list[Check]:
    return [Check("reference", case) for space in spaces for case in golden_cases(space)]


def _others(space: Space) -> list[Check]:
    """All other properties at a few short layouts of several sequences."""
    short = [c for c in golden_cases(space) if len(c.lengths) > 1 and c.n_tokens <= _SHORT_TOKENS]
    chosen = [short[0], short[-1]]
    found = [Check(name, case) for name in PROPERTIES if name != "reference" for case in chosen]
    return [Check(c.property, case) for c in found for case in _judged_at(c, space)]


def _judged_at(check: Check, space: Space) -> list[Case]:
    return with_state(space, [check.case]) if check.property == "carry" else [check.case]


@contextmanager
def _executed() -> Iterator[set[tuple[str, int]]]:
    """Lines of kernels, by module, that run inside the block."""
    found: set[tuple[str, int]] = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(_PACKAGE):
            return None
        module = name.removeprefix(_PACKAGE)

        def line(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            found.add((module, frame.f_lineno))
            return line

        return line(frame, event, argument)

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield found
    finally:
        sys.settrace(before)
