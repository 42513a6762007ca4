"""False alarms: correct kernels, checked by every property, seed after seed."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from packproof.harness.check import TIME_LIMITS
from packproof.harness.process import Worker, run_on_every_core
from packproof.museum import Control
from packproof.properties.calling import Refusal
from packproof.properties.cases import Case, Space, random_cases
from packproof.properties.declarations import Promises, parse_declaration
from packproof.properties.judgement import KernelUnderTest, first_violation
from packproof.properties.laws import PROPERTIES, Property
from packproof.properties.ops import OPS

ALARM_DTYPES = ("float64", "float32", "bfloat16", "float16")
_MOST_TOKENS = 120  # several chunks; more would cost the reference seconds


@dataclass(frozen=True)
class ControlResult:
    """The result of one correct kernel."""

    control: Control
    seeds: int
    judgements: int
    """Judged pairs of a case and a property."""
    seconds: float
    false_alarms: tuple[str, ...]
    """The false alarms, as text."""


def judge_controls(
    controls: Sequence[Control], seeds: int, dtypes: Sequence[str] = ALARM_DTYPES
) -> Iterator[ControlResult]:
    """Check each kernel at one case per seed, dtypes alternating, by every property; yields results as they come.

    dtypes: of all; a seed of another dtype is left out.
    """
    units = [partial(_unit, control, seeds, dtype) for control in controls for dtype in dtypes]
    parts: dict[str, list[ControlResult]] = {}
    for part in run_on_every_core(units, "cpu", record_type=ControlResult):
        control_parts = parts.setdefault(part.control.id, [])
        control_parts.append(part)
        if len(control_parts) == len(dtypes):
            yield ControlResult(
                part.control,
                seeds,
                sum(p.judgements for p in control_parts),
                sum(p.seconds for p in control_parts),
                tuple(alarm for p in control_parts for alarm in p.false_alarms),
            )


def _unit(control: Control, seeds: int, dtype: str) -> Iterator[ControlResult]:
    """The part of one dtype: every fourth seed, as there are four dtypes."""
    start, judgements, false_alarms = time.monotonic(), 0, list[str]()
    k = ALARM_DTYPES.index(dtype)
    with Worker(control.kernel, "cpu", TIME_LIMITS["cpu"]) as worker:
        promises = Promises(**control.promises)
        subject = KernelUnderTest(OPS[control.op], worker, promises, gradients=True)
        parameters = parse_declaration(worker.describe(), control.kernel).parameters
        space = Space(OPS[control.op], dtype, promises, parameters, max_tokens=_MOST_TOKENS)
        cases = random_cases(space, len(range(k, seeds, len(ALARM_DTYPES))), seed=k)
        for seed, case in enumerate(cases):
            seeded_case = case.replace(seed=seed)
            for law in PROPERTIES.values():
                for alarm in _alarms(subject, space, law, seeded_case):
                    judgements += 1
                    false_alarms += [f"{law.name}, {seeded_case}: {alarm}"] if alarm else []
    yield ControlResult(control, seeds, judgements, time.monotonic() - start, tuple(false_alarms))


def _alarms(subject: KernelUnderTest, space: Space, law: Property, case: Case) -> Iterator[str]:
    """For each judgement of a property at a case, the violation as text or "". Nothing if it does not apply."""
    for suited_case in law.suited(space, [case]):
        try:
            violation = first_violation(subject, law, suited_case)
        except Refusal:
            continue
        yield "; ".join(violation.lines()) or law.name if violation else ""
