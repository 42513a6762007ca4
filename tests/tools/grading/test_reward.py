"""Each term of the reward, from times alone."""

import pytest

from packproof.grading.record import ProblemTimes
from packproof.grading.reward import reward_of, speed_of
from packproof.grading.stopwatch import Seconds


def seconds(value: float) -> Seconds:
    return Seconds(value, value, value)


def on_cpu(submission: float, reference: float) -> ProblemTimes:
    return ProblemTimes("", seconds(submission), seconds(reference), floor_seconds=1e-9)


def on_gpu(submission: float, floor: float) -> ProblemTimes:
    return ProblemTimes("", seconds(submission), floor_seconds=floor)


@pytest.mark.parametrize(
    ("times", "speed"),
    [
        ([on_cpu(2.0, 2.0)], 0.5),
        ([on_cpu(1.0, 3.0)], 0.75),
        ([on_gpu(2.0, 1.0)], 0.5),
        ([on_gpu(1.0, 1.1)], 1.0),
        ([on_gpu(1.0, 0.0)], 1e-9),
        ([on_gpu(1.0, 0.25), on_gpu(1.0, 1.0)], 0.5),
        ([ProblemTimes("", note="interpreted")], None),
        ([], None),
    ],
)
def test_the_speed_is_a_geometric_mean(times: list[ProblemTimes], speed: float | None) -> None:
    assert speed_of(times) == (None if speed is None else pytest.approx(speed))


@pytest.mark.parametrize(
    ("verdict", "speed", "reward"),
    [
        ("failed", 1.0, 0.0),
        ("inconclusive", 1.0, 0.0),
        ("error", None, 0.0),
        ("passed", None, 0.5),
        ("passed", 0.5, 0.75),
        ("passed", 1.0, 1.0),
    ],
)
def test_only_a_pass_has_a_reward(verdict: str, speed: float | None, reward: float) -> None:
    assert reward_of(verdict, speed) == reward


def test_below_the_floor_is_every_round_below_it() -> None:
    assert ProblemTimes("", Seconds(0.5, 0.7, 0.9), floor_seconds=1.0).is_below_floor
    assert not ProblemTimes("", Seconds(0.5, 0.7, 1.1), floor_seconds=1.0).is_below_floor
    assert not ProblemTimes("", floor_seconds=1.0).is_below_floor
