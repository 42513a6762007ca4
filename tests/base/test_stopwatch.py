"""Spans of time: each second once, in the innermost one."""

import time

import pytest

from packproof.base.stopwatch import add_seconds, pop_seconds, span


@pytest.fixture(autouse=True)
def _fresh() -> None:
    pop_seconds()


def pause(seconds: float = 0.02) -> None:
    time.sleep(seconds)


def test_a_second_counts_once_in_the_innermost_span() -> None:
    began = time.perf_counter()
    with span("outer"):
        pause()
        with span("inner"):
            pause(0.06)
    whole = time.perf_counter() - began
    found = pop_seconds()
    assert set(found) == {"outer", "inner"}
    assert found["inner"] >= 0.06
    assert 0.02 <= found["outer"] < 0.06
    assert sum(found.values()) == pytest.approx(whole, rel=0.02)


def test_a_whole_span_has_all_that_is_inside_it() -> None:
    with span("shrink", inclusive=True), span("kernel"), span("reference"):
        pause()
    assert set(pop_seconds()) == {"shrink"}


def test_time_outside_of_spans_and_time_taken_do_not_count() -> None:
    with span("draw"):
        pause()
    pause()
    assert 0.02 <= pop_seconds()["draw"] < 0.04
    assert pop_seconds() == {}


def test_time_may_be_taken_inside_a_span() -> None:
    with span("draw"):
        pause()
        first = pop_seconds()["draw"]
        pause()
    assert first >= 0.02
    assert 0.02 <= pop_seconds()["draw"] < 0.04


def test_a_span_ends_with_an_exception() -> None:
    with pytest.raises(ValueError, match="oops"), span("draw"):
        raise ValueError("oops")
    pop_seconds()
    pause()
    assert pop_seconds() == {}


def test_added_time() -> None:
    add_seconds("start", 1.5)
    add_seconds("start", 0.5)
    assert pop_seconds() == {"start": 2.0}


def test_a_span_costs_a_few_microseconds() -> None:
    began = time.process_time()
    for _ in range(10_000):
        with span("draw"):
            pass
    assert (time.process_time() - began) / 10_000 < 2e-5
