"""What the walls around a kernel cost."""

import sys

import pytest

from packproof.proof.wall_cost import WAYS, CheckCost, main, measure, median_ratio

MODULE = sys.modules[measure.__module__]


def test_a_ratio_is_that_of_a_turn() -> None:
    """A machine that gets slower from turn to turn makes no wall look dear."""
    without = [CheckCost(1.0, 2.0), CheckCost(2.0, 4.0), CheckCost(4.0, 8.0)]
    within = [CheckCost(1.1, 2.0), CheckCost(2.2, 5.0), CheckCost(6.0, 16.0)]
    assert median_ratio(within, without, "cpu") == pytest.approx(1.1)
    assert median_ratio(within, without, "wall") == pytest.approx(1.25)


def test_turns_alternate_and_the_first_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def cost_of(arguments: list[str], folder: str) -> CheckCost:
        runs.append(next((way for way in WAYS if way in arguments), "as usual"))
        return CheckCost(float(len(runs)), 1.0)

    monkeypatch.setattr(MODULE, "_cost_of", cost_of)
    costs = measure("conv-quick", 2)
    assert runs == [*WAYS] * 3
    assert [cost.cpu for cost in costs["--isolate"]] == [6.0, 9.0]


@pytest.mark.parametrize(("dear", "code"), [(1.05, 0), (1.2, 1)])
def test_more_than_a_tenth_fails(dear: float, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {way: [CheckCost(dear if way == "--isolate" else 1.0, 1.0)] for way in WAYS}
    monkeypatch.setattr(MODULE, "measure", lambda check, turns: costs)
    monkeypatch.setattr(sys, "argv", ["wall_cost", "conv-quick", "--turns", "1"])
    assert main() == code


@pytest.mark.proof
def test_a_check_that_does_not_pass_has_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULE.CHECKS, "none", ("no_such_module:kernel",))
    with pytest.raises(RuntimeError, match="ended with exit code 2"):
        measure("none", 1)
