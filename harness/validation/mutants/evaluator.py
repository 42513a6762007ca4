"""Where the mutants of an op's kernels are judged: by checks that the kernel itself passes, the cheapest first."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from types import FrameType
from typing import Any

from packproof.harness.engine.violations import broken
from packproof.harness.execution.execute import InProcess
from packproof.harness.targets.builtin_kernels import BuiltinKernel
from packproof.harness.targets.location import Location
from packproof.harness.validation.mutants.fork_pool import TAINTED
from packproof.harness.validation.mutants.mutant import Mutant, installed
from packproof.harness.validation.mutants.outcome import DECIDING, convicted_by
from packproof.properties.call import Refused
from packproof.properties.case import Case
from packproof.properties.cases import Space, golden_cases
from packproof.properties.catalogue import PROPERTIES
from packproof.properties.invariance import REFERENCE
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.ops import OPS
from packproof.properties.property import Property
from packproof.refs.errors import PackproofError

_PACKAGE = "packproof.kernels."
_DTYPES = ("float32", "bfloat16", "float64")  # fp16 takes the ways of these
_FEW_CHUNKS = 7  # of a short case
_GLANCE = 1.0  # seconds of the kernel: what is spent on a mutant that nothing is expected to convict
_LIMIT = 2.0, 5.0  # seconds that a check may take, and how many times what it takes the kernel
_LIMIT_UNKNOWN = 300.0

Lines = frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Check:
    """A property at a case. seconds: that the kernel takes; lines: of modules of kernels that it executes."""

    property: Property
    case: Case
    seconds: float = 0.0
    lines: Lines = field(default=frozenset(), repr=False)


class Court:
    """The checks of one kernel; to be opened where Triton interprets, in the process that children are forked from."""

    def __init__(self, own: BuiltinKernel) -> None:
        declared = own.declaration("cpu")
        op = OPS[own.op]
        self.op = own.op
        self._subject = KernelUnderTest(op, InProcess(Location.parse(own.target).load()), declared.promises)
        self._spaces = [Space(op, dtype, declared.promises) for dtype in _DTYPES if dtype in own.dtypes]
        self._proven: dict[Callable[[Sequence[Space]], list[Check]], list[Check]] = {}
        self._passed: dict[tuple[Property, Case], Check] = {}

    @cached_property
    def modules(self) -> frozenset[str]:
        """The modules of kernels that its first case executes: of every one that it ever does, some function."""
        first = next(golden_cases(self._spaces[0]))
        [check] = self._proof([Check(REFERENCE, first)])
        return frozenset(module for module, _ in check.lines)

    def checks(self, turn: int, mutant: Mutant, *, glance: bool) -> list[Check]:
        """Those of a turn that execute what the mutant has changed; in a glance, a second's worth of them.

        The last turn is not proven beforehand, and tells only later whether the kernel passes what a mutant has broken.
        """
        make = _TURNS[turn]
        if make is _everything:
            return make(self._spaces)
        if make not in self._proven:
            self._proven[make] = sorted(self._proof(make(self._spaces)), key=lambda check: check.seconds)
        found = [c for c in self._proven[make] if any((mutant.module, line) in c.lines for line in mutant.lines)]
        spent = accumulate((c.seconds for c in found), initial=0.0)
        return [c for c, before in zip(found, spent, strict=False) if not glance or before < _GLANCE]

    def named(self, words: Mapping[Mutant, tuple[str, str]]) -> dict[Mutant, list[Check]]:
        """The check of each by its property and its case in words, those that there are no more left out."""
        every = {(c.property.name, str(c.case)): c for make in _TURNS for c in make(self._spaces)}
        wanted = [every[said] for said in dict.fromkeys(words.values()) if said in every]
        proven = {(c.property.name, str(c.case)): c for c in self._proof(wanted)}
        return {mutant: [proven[said]] for mutant, said in words.items() if said in proven}

    def judge(self, mutant: Mutant, checks: list[Check]) -> Iterator[dict[str, Any]]:
        """In a child of this process: names each check before it runs; the last word says what convicted, if anything.

        A check that takes too long ends the process; a fault may leave something behind in it.
        """
        self._subject.renew()
        started = time.process_time()
        by = ""
        with installed(mutant):
            for check in checks:
                yield {"property": check.property.name, "case": str(check.case), "op": self.op}
                if by := self._conviction(check):
                    break
        if by and not check.lines:
            self._require_innocence(check)
        faulty = bool(by) and by not in PROPERTIES
        yield {"by": by, "seconds": time.process_time() - started, TAINTED: faulty}

    def _conviction(self, check: Check) -> str:
        limit = _LIMIT[0] + _LIMIT[1] * check.seconds if check.seconds else _LIMIT_UNKNOWN
        signal.setitimer(signal.ITIMER_PROF, limit)
        by = convicted_by(self._subject, check.property, check.case)
        signal.setitimer(signal.ITIMER_PROF, 0)
        return by

    def _require_innocence(self, check: Check) -> None:
        self._subject.renew()
        try:
            violation = broken(self._subject, check.property, check.case)
        except Refused:
            violation = None
        if violation is not None:
            raise PackproofError(
                f"{self.op} itself breaks {check.property.name} at {check.case}: mutants of it cannot be judged\n"
                f"    {' '.join(violation.lines())}"
            )

    def _proof(self, checks: list[Check]) -> Iterator[Check]:
        """The checks with their time and lines, once the kernel has passed them."""
        for check in checks:
            known = check.property, check.case
            if known not in self._passed:
                self._subject.expect(self._subject.sample(check.case))  # the oracle's time is not the kernel's
                started = time.process_time()
                with _executed() as lines:
                    self._require_innocence(check)
                self._passed[known] = Check(*known, time.process_time() - started, frozenset(lines))
            yield self._passed[known]


def _short_reference(spaces: Sequence[Space]) -> list[Check]:
    return [c for c in _reference(spaces) if _chunks(c, spaces[0]) <= _FEW_CHUNKS]


def _long_reference(spaces: Sequence[Space]) -> list[Check]:
    return [c for c in _reference(spaces) if _chunks(c, spaces[0]) > _FEW_CHUNKS]


def _reference(spaces: Sequence[Space]) -> list[Check]:
    return [Check(REFERENCE, case) for space in spaces for case in golden_cases(space)]


def _chunks(check: Check, space: Space) -> int:
    """How many chunks' worth of tokens and sequences."""
    return -(-check.case.n_tokens // space.chunk) + len(check.case.lengths)


def _others(spaces: Sequence[Space]) -> list[Check]:
    """Properties that vary with the seed at one layout for each of them; all else at two."""
    several = [c for c in golden_cases(spaces[0]) if len(c.lengths) > 1]
    seeds = {c.seed: c for c in reversed(several)}
    others = [law for law in DECIDING if law is not REFERENCE]
    found = [Check(law, case) for law in others if law.varies_with_seed for case in seeds.values()]
    found += [Check(law, case) for law in others if not law.varies_with_seed for case in several[1:3]]
    return _suited(found, spaces[0])


def _everything(spaces: Sequence[Space]) -> list[Check]:
    """Every property at every golden case: what a check of the kernel does, without the random cases."""
    return _suited(
        [Check(law, case) for space in spaces for case in golden_cases(space) for law in DECIDING], spaces[0]
    )


def _suited(checks: list[Check], space: Space) -> list[Check]:
    return [Check(c.property, case) for c in checks for case in c.property.suited(space, [c.case])]


_TURNS = (_short_reference, _long_reference, _others, _everything)
TURNS = range(len(_TURNS))


@contextmanager
def _executed() -> Iterator[set[tuple[str, int]]]:
    """Lines of kernels, by module, that run inside the block."""
    found: set[tuple[str, int]] = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(_PACKAGE):
            return None
        module = name.removeprefix(_PACKAGE)

        def line(frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any]:
            found.add((module, frame.f_lineno))
            return line

        return line(frame, event, argument)

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield found
    finally:
        sys.settrace(before)
