"""No correct kernel fails, whatever the seed: the long run of test_museum.py, which `make proof` makes."""

import pytest

from tests.quality.test_museum import CONTROLS, DTYPES, failures

SEEDS = (1, 2, 3)


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONTROLS)
def test_a_correct_kernel_does_not_fail(name: str, dtype: str) -> None:
    assert {seed: failures(CONTROLS[name], "quick", (dtype,), seed) for seed in SEEDS} == {s: [] for s in SEEDS}
