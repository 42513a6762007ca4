"""False alarms: correct kernels, checked by every property, seed after seed."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from packproof.harness.engine.request import TIME_LIMITS
from packproof.harness.engine.violations import broken
from packproof.harness.worker.parallel import on_every_core
from packproof.harness.worker.worker import Worker
from packproof.museum import Control
from packproof.properties.call import Refused
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space, random_cases
from packproof.properties.declaration import declaration
from packproof.properties.kernel_under_test import KernelUnderTest
from packproof.properties.laws.catalogue import PROPERTIES
from packproof.properties.laws.property import Property
from packproof.properties.ops import OPS
from packproof.properties.promises import Promises

DTYPES = ("float64", "float32", "bfloat16", "float16")
_MOST_TOKENS = 120  # several chunks; more would cost the reference seconds


@dataclass(frozen=True)
class ControlResult:
    """The result of one correct kernel."""

    control: Control
    seeds: int
    judged: int
    """Judged pairs of a case and a property."""
    seconds: float
    false: tuple[str, ...]
    """The false alarms, as text."""


def judge_controls(chosen: Sequence[Control], seeds: int) -> Iterator[ControlResult]:
    """Check each kernel at one case per seed, dtypes alternating, by every property; yields results as they come."""
    units = [partial(_unit, control, seeds, dtype) for control in chosen for dtype in DTYPES]
    parts: dict[str, list[ControlResult]] = {}
    for part in on_every_core(units, "cpu", of=ControlResult):
        of_it = parts.setdefault(part.control.id, [])
        of_it.append(part)
        if len(of_it) == len(DTYPES):
            yield ControlResult(
                part.control,
                seeds,
                sum(p.judged for p in of_it),
                sum(p.seconds for p in of_it),
                tuple(alarm for p in of_it for alarm in p.false),
            )


def _unit(control: Control, seeds: int, dtype: str) -> Iterator[ControlResult]:
    """The part of one dtype: every fourth seed, as there are four dtypes."""
    started, judged, false = time.monotonic(), 0, list[str]()
    k = DTYPES.index(dtype)
    with Worker(control.kernel, "cpu", TIME_LIMITS["cpu"]) as worker:
        promises = Promises(**control.promises)
        subject = KernelUnderTest(OPS[control.op], worker, promises, gradients=True)
        parameters = declaration(worker.describe(), control.kernel).parameters
        space = Space(OPS[control.op], dtype, promises, parameters, max_tokens=_MOST_TOKENS)
        drawn = random_cases(space, len(range(k, seeds, len(DTYPES))), seed=k)
        for seed, case in enumerate(drawn):
            for law in PROPERTIES.values():
                for found in _alarms(subject, space, law, case.replace(seed=seed)):
                    judged += 1
                    false += [f"{law.name}, {case}: {found}"] if found else []
    yield ControlResult(control, seeds, judged, time.monotonic() - started, tuple(false))


def _alarms(subject: KernelUnderTest, space: Space, law: Property, case: Case) -> Iterator[str]:
    """For each judgement of a property at a case, the violation as text or "". Nothing if it does not apply."""
    for judged in law.suited(space, [case]):
        try:
            violation = broken(subject, law, judged)
        except Refused:
            continue
        yield "; ".join(violation.lines()) or law.name if violation else ""
