"""Checks take no longer than they did, in units of what importing torch and triton takes on the same machine."""

from pathlib import Path

import pytest

from packproof.proof.speed import Speed, find_slower, measure, read_speeds

BEFORE = read_speeds(Path(__file__).parents[2] / "data" / "speed.json")
QUICK = ("triton-conv-quick",)  # for time: `make proof` has them all


def test_what_takes_longer_is_named() -> None:
    before = [Speed("conv", "cpu", 10.0, 5.0), Speed("ssd", "cpu", 20.0, 10.0)]
    now = [Speed("conv", "cpu", 10.0, 8.0), Speed("ssd", "cpu", 20.0, 11.0), Speed("new", "cpu", 90.0, 99.0)]
    assert find_slower(now, before) == ["conv: 8.0 units, 5.0 before"]


@pytest.mark.proof
def test_a_quick_check_takes_no_longer_than_before() -> None:
    assert {speed.name for speed in BEFORE} >= set(QUICK)
    late = find_slower(list(measure(QUICK, starts=False)), BEFORE)
    if late:  # other tests run beside this one
        late = find_slower(list(measure(QUICK, starts=False)), BEFORE)
    assert not late
