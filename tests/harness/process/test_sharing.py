"""Processes side by side share the cores."""

import time
from collections.abc import Iterator
from functools import partial
from itertools import groupby

import pytest

from packproof.harness.process.parallel import run_side_by_side
from packproof.harness.process.sharing import CoreTime, without_core


def counts(name: str, seconds: float, until: float, own: float, slice_seconds: float = 10.0) -> Iterator[str]:
    """Its name every 0.05 s, as long as it may. own: seconds that are its share."""
    core_time, enough = CoreTime(until, time.monotonic() + own, slice_seconds), time.monotonic() + seconds
    while time.monotonic() < enough and core_time.wait_for_turn():
        yield name
        time.sleep(0.05)


def sleeps(name: str, seconds: float) -> Iterator[str]:
    with without_core():
        yield name
        time.sleep(seconds)
    yield name


def order(found: Iterator[str]) -> list[str]:
    return [name for name, _ in groupby(found)]


@pytest.mark.proof
def test_one_that_had_its_share_waits_for_those_that_have_not_begun() -> None:
    now = time.monotonic()
    units = [partial(counts, "long", 30.0, now + 3.5, 0.5), partial(counts, "short", 0.5, now + 3.5, 3.5)]
    assert order(run_side_by_side(units, 1, record_type=str)) == ["long", "short", "long"]
    assert 3 < time.monotonic() - now < 5.5


def test_none_waits_while_there_are_cores() -> None:
    now = time.monotonic()
    units = [partial(counts, name, 1.0, now + 20, 0.0) for name in "ab"]
    assert sorted(set(run_side_by_side(units, 2, record_type=str))) == ["a", "b"]
    assert time.monotonic() - now < 4


def test_without_a_limit_none_waits() -> None:
    infinity = float("inf")
    units = [partial(counts, name, 0.3, infinity, infinity) for name in "ab"]
    assert order(run_side_by_side(units, 1, record_type=str)) == ["a", "b"]


@pytest.mark.proof
def test_several_that_have_had_their_share_alternate() -> None:
    now = time.monotonic()
    units = [partial(counts, name, 30.0, now + 4, 0.2, slice_seconds=0.3) for name in "ab"]
    assert order(run_side_by_side(units, 1, record_type=str))[:4] == ["a", "b", "a", "b"]


def test_what_needs_no_core_leaves_it_to_another() -> None:
    units = [partial(sleeps, "waits", 1.0), partial(counts, "computes", 0.2, float("inf"), float("inf"))]
    assert order(run_side_by_side(units, 1, record_type=str)) == ["waits", "computes", "waits"]


@pytest.mark.proof
def test_everyone_has_its_share_where_there_are_more_than_may_live() -> None:
    """One that has had it ends then, before its time is up."""
    now = time.monotonic()
    units = [partial(counts, name, 30.0, now + 4, 0.2) for name in "abcdef"]
    found = order(run_side_by_side(units, 1, record_type=str))
    assert set(found) == set("abcdef")
    assert time.monotonic() - now < 6


def test_outside_of_a_fork_there_is_none_to_wait_for() -> None:
    with without_core():
        pass
    now = time.monotonic()
    assert CoreTime(now + 5, now + 4).wait_for_turn()
    assert not CoreTime(now + 5, now).wait_for_turn()  # what comes after it, in this process, would have nothing
    assert not CoreTime(now).wait_for_turn()
    assert CoreTime(time.monotonic()).is_over
