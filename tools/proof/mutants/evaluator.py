"""Evaluates the mutants of an op's kernels by checks that the unchanged kernel passes, cheapest first."""

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

from packproof.base.errors import PackproofError
from packproof.harness.check.targets import BuiltinKernel
from packproof.harness.process.execution import InProcess
from packproof.harness.process.naming import Location
from packproof.proof.mutants.fork_pool import TAINTED
from packproof.proof.mutants.mutant import Mutant, install
from packproof.proof.mutants.outcome import DECIDING, detected_by
from packproof.properties.calling import Refusal
from packproof.properties.cases import Case, Space, golden_cases
from packproof.properties.judgement import KernelUnderTest, first_violation
from packproof.properties.laws import PROPERTIES, REFERENCE, Property
from packproof.properties.ops import OPS

_PACKAGE = "packproof.kernels."
_DTYPES = ("float32", "bfloat16", "float64")
_FP16 = "float16"  # has paths of its own in a few kernels only
_FEW_CHUNKS = 7  # the most in a short case
_GLANCE_SECONDS = 1.0  # seconds of the kernel for a mutant explained as a survivor
_LIMIT = 2.0, 5.0  # seconds of a check, plus a multiple of the time of the unchanged kernel
_LIMIT_UNKNOWN = 300.0

Lines = frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Check:
    """A property at a case."""

    property: Property
    case: Case
    seconds: float = 0.0
    """The time of the unchanged kernel, 0 if it is not known."""
    lines: Lines = field(default=frozenset(), repr=False)
    """The executed lines of kernel modules."""


class MutantEvaluator:
    """The checks of one kernel. Create it with Triton in interpreter mode, in the parent process of the fork pool."""

    def __init__(self, builtin: BuiltinKernel) -> None:
        declaration = builtin.declaration("cpu")
        op = OPS[builtin.op]
        self.op = builtin.op
        self._subject = KernelUnderTest(op, InProcess(Location.parse(builtin.target).load()), declaration.promises)
        dtypes = (*_DTYPES, _FP16) if builtin.has_separate_fp16_path else _DTYPES
        self._spaces = [Space(op, dtype, declaration.promises) for dtype in dtypes if dtype in builtin.dtypes]
        self._proven_checks: dict[Callable[[Sequence[Space]], list[Check]], list[Check]] = {}
        self._passed_checks: dict[tuple[Property, Case], Check] = {}

    @cached_property
    def modules(self) -> frozenset[str]:
        """The kernel modules executed by the first case. It reaches each module of the kernel, if not each function."""
        first_case = next(golden_cases(self._spaces[0]))
        [check] = self._prove([Check(REFERENCE, first_case)])
        return frozenset(module for module, _ in check.lines)

    def checks(self, round_number: int, mutant: Mutant, *, glance: bool) -> list[Check]:
        """The checks of a round that execute the changed lines.

        round_number: 0 is the cheapest round. The kernel itself passes all rounds but the last beforehand. In the last,
        it is run only after a mutant fails a check.
        glance: whether to stop after checks of one second.
        """
        make = _ROUNDS[round_number]
        if make is _all_golden:
            return make(self._spaces)
        if make not in self._proven_checks:
            self._proven_checks[make] = sorted(self._prove(make(self._spaces)), key=lambda check: check.seconds)
        relevant = [
            c for c in self._proven_checks[make] if any((mutant.module, line) in c.lines for line in mutant.lines)
        ]
        spent = accumulate((c.seconds for c in relevant), initial=0.0)
        return [c for c, before in zip(relevant, spent, strict=False) if not glance or before < _GLANCE_SECONDS]

    def find_checks(self, descriptions: Mapping[Mutant, tuple[str, str]]) -> dict[Mutant, list[Check]]:
        """The check of each mutant from its description, a property and a case as text. Unknown ones are left out."""
        all_checks = {(c.property.name, str(c.case)): c for make in _ROUNDS for c in make(self._spaces)}
        requested = [all_checks[key] for key in dict.fromkeys(descriptions.values()) if key in all_checks]
        proven = {(c.property.name, str(c.case)): c for c in self._prove(requested)}
        return {mutant: [proven[key]] for mutant, key in descriptions.items() if key in proven}

    def evaluate(self, mutant: Mutant, checks: list[Check]) -> Iterator[dict[str, Any]]:
        """Run the checks in a fork of this process, until one kills the mutant.

        Reports each check before it runs, and at the end the killer, "" if there is none. A timeout ends the process. A
        fault (such as a memory error) may leave the process in a bad state: its report has TAINTED.
        """
        self._subject.cache.discard_results()
        start = time.process_time()
        killer = ""
        with install(mutant):
            for check in checks:
                yield {"property": check.property.name, "case": str(check.case), "op": self.op}
                if killer := self._killer(check):
                    break
        if killer and not check.lines:
            self._require_pass(check)
        faulty = bool(killer) and killer not in PROPERTIES
        yield {"by": killer, "seconds": time.process_time() - start, TAINTED: faulty}

    def _killer(self, check: Check) -> str:
        limit = _LIMIT[0] + _LIMIT[1] * check.seconds if check.seconds else _LIMIT_UNKNOWN
        signal.setitimer(signal.ITIMER_PROF, limit)  # CPU time; its signal ends the process
        killer = detected_by(self._subject, check.property, check.case)
        signal.setitimer(signal.ITIMER_PROF, 0)
        return killer

    def _require_pass(self, check: Check) -> None:
        self._subject.cache.discard_results()
        try:
            violation = first_violation(self._subject, check.property, check.case)
        except Refusal:
            violation = None
        if violation is not None:
            raise PackproofError(
                f"{self.op} itself breaks {check.property.name} at {check.case}: its mutants cannot be checked\n"
                f"    {' '.join(violation.lines())}"
            )

    def _prove(self, checks: list[Check]) -> Iterator[Check]:
        """Run the unchanged kernel: yields the checks with times and lines. Raises PackproofError if it fails one."""
        for check in checks:
            key = check.property, check.case
            if key not in self._passed_checks:
                self._subject.expect(self._subject.sample(check.case))  # the reference runs now, outside of the timing
                start = time.process_time()
                with _trace_lines() as lines:
                    self._require_pass(check)
                self._passed_checks[key] = Check(*key, time.process_time() - start, frozenset(lines))
            yield self._passed_checks[key]


def _short_reference(spaces: Sequence[Space]) -> list[Check]:
    return [c for c in _reference(spaces) if _chunks(c, spaces[0]) <= _FEW_CHUNKS]


def _long_reference(spaces: Sequence[Space]) -> list[Check]:
    return [c for c in _reference(spaces) if _chunks(c, spaces[0]) > _FEW_CHUNKS]


def _reference(spaces: Sequence[Space]) -> list[Check]:
    return [Check(REFERENCE, case) for space in spaces for case in golden_cases(space)]


def _chunks(check: Check, space: Space) -> int:
    """The number of chunks filled by its tokens, plus the number of sequences."""
    return -(-check.case.n_tokens // space.chunk) + len(check.case.lengths)


def _other_properties(spaces: Sequence[Space]) -> list[Check]:
    """The other properties: those depending on the seed at one layout for each seed, the rest at two layouts."""
    several = [c for c in golden_cases(spaces[0]) if len(c.lengths) > 1]
    seeds = {c.seed: c for c in reversed(several)}
    properties = [law for law in DECIDING if law is not REFERENCE]
    checks = [Check(law, case) for law in properties if law.varies_with_seed for case in seeds.values()]
    checks += [Check(law, case) for law in properties if not law.varies_with_seed for case in several[1:3]]
    return _suited_checks(checks, spaces[0])


def _all_golden(spaces: Sequence[Space]) -> list[Check]:
    """Every property at every golden case: as `packproof check`, without the random cases."""
    return _suited_checks(
        [Check(law, case) for space in spaces for case in golden_cases(space) for law in DECIDING], spaces[0]
    )


def _suited_checks(checks: list[Check], space: Space) -> list[Check]:
    return [Check(c.property, case) for c in checks for case in c.property.suited(space, [c.case])]


_ROUNDS = (_short_reference, _long_reference, _other_properties, _all_golden)
ROUNDS = range(len(_ROUNDS))


@contextmanager
def _trace_lines() -> Iterator[set[tuple[str, int]]]:
    """The kernel lines executed inside the block, as pairs of module and line number."""
    executed_lines: set[tuple[str, int]] = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(_PACKAGE):
            return None
        module = name.removeprefix(_PACKAGE)

        def line(frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any]:
            executed_lines.add((module, frame.f_lineno))
            return line

        return line(frame, event, argument)

    previous_trace = sys.gettrace()
    sys.settrace(enter)
    try:
        yield executed_lines
    finally:
        sys.settrace(previous_trace)
