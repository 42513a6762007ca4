"""Which calls a kernel may take long for, by the calls that it has answered."""

import pytest
import torch

from packproof.harness.process.pace import Pace
from packproof.properties.calling.call import Call


def call(*lengths: int, wrt: tuple[str, ...] = ()) -> Call:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return Call(inputs={}, cu_seqlens=offsets, options={}, outputs=("y",), wrt=wrt)


def test_many_short_sequences_say_nothing_of_a_long_one() -> None:
    pace = Pace()
    pace.record(call(1), 0.001)
    pace.record(call(50, 50), 0.05)  # 1e-5 s for each pair of tokens in a sequence
    pace.record(call(*[1] * 8192), 0.8)  # 1.2e-8 s for each pair in the pack
    assert pace.may_take_longer(call(4096, 4096), 120)
    assert not pace.may_take_longer(call(60, 60), 120)


def test_the_start_of_a_call_is_no_work() -> None:
    """A kernel that never returns from two tokens on answers one token in a tenth of a second, nearly all of it spent
    before the kernel: that excuses no hang of twelve tokens."""
    pace = Pace()
    pace.record(call(1), 0.1)
    assert not pace.may_take_longer(call(0, 5, 0, 0, 7, 0), 6)
    pace.record(call(1, 3), 0.11)
    assert not pace.may_take_longer(call(64, 1, 63), 30)
    assert not pace.may_take_longer(call(1000), 30)


@pytest.mark.parametrize("answered", [[(2, 3.0)], [(2, 3.0), (1, 0.01)], [(1, 0.01), (8, 3.0)]])
def test_one_slow_call_may_have_compiled(answered: list[tuple[int, float]]) -> None:
    """It excuses no hang of the next one, whether it was the first or met a case of the kernel for the first time."""
    pace = Pace()
    for n, seconds in answered:
        pace.record(call(n), seconds)
    assert not pace.may_take_longer(call(5, 7), 6)


def test_two_calls_show_how_much_longer_a_slow_kernel_takes() -> None:
    pace = Pace()
    for n in (0, 1, 8, 10):
        pace.record(call(n), 0.01 + 0.1 * n)
    assert pace.may_take_longer(call(1000), 30)
    assert not pace.may_take_longer(call(30), 30)


def test_a_call_without_an_answered_one_is_not_expected_to_be_slow() -> None:
    assert not Pace().may_take_longer(call(4096), 1)


def test_calls_with_at_least_the_work_of_one_that_was_too_slow_are_not_made() -> None:
    pace = Pace()
    pace.record_too_slow(call(100, 100))
    assert pace.is_too_slow(call(100, 100))
    assert pace.is_too_slow(call(100, 300, wrt=("x",)))
    assert not pace.is_too_slow(call(100, 99))
    assert not pace.is_too_slow(call(*[1] * 300))


def test_a_backward_pass_that_was_too_slow_says_nothing_of_values() -> None:
    pace = Pace()
    pace.record_too_slow(call(100, wrt=("x",)))
    assert not pace.is_too_slow(call(100))
    assert pace.is_too_slow(call(100, wrt=("x",)))
