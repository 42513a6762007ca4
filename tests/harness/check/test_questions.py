"""What a kernel does not promise is tested and reported, with the smallest layout, and counts under --strict alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import packproof
from packproof.cli import ending, main
from packproof.harness.report.failed import CheckFailed
from packproof.harness.report.wording.conclusions import answers
from packproof.refs import seq_idx_from_cu_seqlens

KERNELS = Path(__file__).parents[2] / "adapters/kernels.py"
REQUEST = {"op": "causal_conv1d", "dtypes": ["fp32"], "properties": ["isolation", "packing", "determinism"]}
MEANINGS = {
    "NaN": "NaN, Inf and huge values in one sequence reach no other",
    "alone": "a sequence has the same bits alone and in a pack",
    "twice": "the same call gives the same bits",
}


def keeps_all(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
    """Selects, adds in the order of the taps, everywhere."""
    return _conv(x, weight, cu_seqlens, lambda tap, same: torch.where(same, tap, 0))


def multiplies(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
    """Masks by multiplication, except for rows past the end."""
    inside = seq_idx_from_cu_seqlens(cu_seqlens, len(x))[:, None] >= 0
    return _conv(torch.where(inside, x, 0), weight, cu_seqlens, lambda tap, same: tap * same)


def rounds_by_place(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
    """Adds in another order in every second row of the pack."""
    forward = keeps_all(x, weight, cu_seqlens=cu_seqlens)
    backward = _conv(x, weight, cu_seqlens, lambda tap, same: torch.where(same, tap, 0), order=-1)
    return torch.where((torch.arange(len(x)) % 2 == 0)[:, None], forward, backward)


def changes(x: Any, weight: Any, *, cu_seqlens: Any) -> Any:
    changes.calls += 1  # type: ignore[attr-defined]
    return keeps_all(x, weight, cu_seqlens=cu_seqlens) * (1 + 2.0**-23 * (changes.calls % 2))  # type: ignore[attr-defined]


changes.calls = 0  # type: ignore[attr-defined]


def _conv(x: Any, weight: Any, cu_seqlens: Any, masked: Any, order: int = 1) -> Any:
    w = weight.shape[1]
    ids = seq_idx_from_cu_seqlens(cu_seqlens, len(x))
    rows, before = functional.pad(x, (0, 0, w - 1, 0)), functional.pad(ids, (w - 1, 0), value=-1)
    y = torch.zeros_like(x)
    for tap in range(w)[::order]:
        same = (before[tap : tap + len(x)] == ids)[:, None] & (ids >= 0)[:, None]
        y = y + masked(rows[tap : tap + len(x)], same) * weight[:, tap]
    return torch.where((ids >= 0)[:, None], y, 0)


pytestmark = pytest.mark.usefixtures("working_folder")


def reported(kernel: Any, **request: Any) -> dict[str, Any]:
    """What is said of each promise, none of which fails the check."""
    verdicts = packproof.check(kernel, device="cpu", profile="quick", **{**REQUEST, **request})
    return {answer.meaning: answer for answer in answers(verdicts)}


def test_promises_that_hold_are_reported() -> None:
    found = reported(keeps_all)
    assert set(found) == set(MEANINGS.values())
    for meaning, answer in found.items():
        assert not answer.broken
        assert str(answer).startswith(f"{meaning}: holds")


@pytest.mark.parametrize(
    ("kernel", "law", "broken", "lengths"),
    [
        (rounds_by_place, "packing", "alone", "[1, 3]"),
        pytest.param(changes, "determinism", "twice", "[", marks=pytest.mark.proof),
    ],
)
def test_one_that_does_not_hold_is_reported_and_does_not_count(
    kernel: Any, law: str, broken: str, lengths: str
) -> None:
    answer = reported(kernel, properties=[law])[MEANINGS[broken]]
    assert answer.broken
    assert str(answer).startswith(f"{MEANINGS[broken]}: does not hold (fp32), smallest lengths {lengths}")


@pytest.mark.proof
def test_strict_makes_them_count(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    only = {**REQUEST, "properties": ["isolation"]}
    with pytest.raises(CheckFailed, match="isolation"):
        packproof.check(multiplies, device="cpu", profile="quick", strict=True, **only)  # type: ignore[arg-type]
    request = ["check", f"{KERNELS}:multiplying", "--property", "isolation", "--profile", "quick", "--device", "cpu"]
    assert main.run(request) == ending.SUCCESS
    shown = capsys.readouterr().out
    assert "checked though not promised:" in shown
    assert f"{MEANINGS['NaN']}: does not hold (fp32), smallest lengths [1, 2] · packproof replay " in shown
    assert main.run([*request, "--strict", "--json", str(tmp_path / "strict.json")]) == ending.FAILED
    assert "isolation (NaN)" in capsys.readouterr().out
