"""One unit of a plan: what its cells know of the time of the others."""

import math
import time
from collections.abc import Iterator

import pytest

from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.check.unit import slow_calls_until
from packproof.harness.report.events import CellFinished
from packproof.properties.cases.case import Case
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.property import Property
from packproof.properties.laws.violation import Violation

SECONDS = 0.5


def _slow(_kernel: KernelUnderTest, _case: Case) -> Iterator[Violation]:
    time.sleep(SECONDS)
    yield from ()


def _remaining_time(kernel: KernelUnderTest, _case: Case) -> Iterator[Violation]:
    yield Violation(text=f"{kernel.slow_calls_until - time.monotonic()} s for slow calls")


SLOW = Property("slow", "Each case takes its time.", _slow, cases=lambda _space, cases: list(cases)[:2])
FILLS_MEMORY = Property("fills", "It says what time remains.", _remaining_time, fills_memory=True)


def test_a_third_of_a_check_is_for_slow_calls() -> None:
    assert slow_calls_until(100.0, 118.0) == 127.0


@pytest.mark.parametrize("others", [(), (SLOW,)], ids=["alone", "after others"])
def test_a_property_that_fills_the_memory_has_half_the_time_of_the_others(others: tuple[Property, ...]) -> None:
    request = CheckRequest(
        target="packproof.refs:rope",
        op="rope",
        dtypes=("float32",),
        properties=(FILLS_MEMORY, *others),
        profile="quick",
        questions=False,
    )
    verdicts = {e.verdict.cell.property: e.verdict for e in run_check(request) if isinstance(e, CellFinished)}
    failure = verdicts["fills"].failure
    assert failure is not None
    [line] = [line for line in failure.lines if line.endswith("s for slow calls")]
    remaining = float(line.split()[0])
    if others:
        assert 0 < remaining <= verdicts["slow"].seconds
        assert verdicts["slow"].seconds >= 2 * SECONDS
    else:
        assert math.isinf(remaining)
