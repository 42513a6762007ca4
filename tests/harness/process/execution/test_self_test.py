"""What an untried release of torch or triton leads to: its self-test, and one sentence in the run's notes."""

import pytest

from packproof import version as releases
from packproof.base.errors import PackproofError
from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.process.execution import self_test
from packproof.harness.report.events import RunStarted

SENTENCE = "torch 9.9.0 is newer than what packproof was tried with (2.9 to 2.15)"


def notes(monkeypatch: pytest.MonkeyPatch, *packages: str) -> tuple[str, ...]:
    """Those of a run beside packages whose releases are newer than any that was tried."""
    monkeypatch.setattr(releases, "TRIED", dict.fromkeys(packages, ("0.1", "0.2")))
    request = CheckRequest(
        target="packproof.refs:rope",
        op="rope",
        device="cpu",
        dtypes=("float32",),
        properties=("packing",),
        profile="quick",
    )
    started = next(event for event in run_check(request) if isinstance(event, RunStarted))
    return tuple(note for note in started.notes if "newer" in note)


def test_an_untried_release_is_named_once_with_its_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    torch, triton = notes(monkeypatch, "torch", "triton")
    assert torch.startswith("torch ")
    assert triton.startswith("triton ")
    for note in (torch, triton):
        assert note.endswith(" is newer than what packproof was tried with (0.1 to 0.2); self-test passed")


def test_a_release_that_was_tried_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert notes(monkeypatch) == ()


def test_a_correct_kernel_passes_and_an_incorrect_one_fails() -> None:
    assert self_test.incorrect_verdicts() == []
    self_test.require_sound_judgement(SENTENCE)


def test_a_judgement_that_misses_an_incorrect_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "_incorrect", self_test._correct)
    with pytest.raises(PackproofError) as found:
        self_test.require_sound_judgement(SENTENCE)
    assert str(found.value).startswith(
        f"{SENTENCE}, and its self-test fails: reference finds nothing wrong in an incorrect convolution; "
    )
    assert str(found.value).endswith(f"Use torch {releases.tried('torch')}.")


def test_a_judgement_that_fails_a_correct_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "_correct", self_test._incorrect)
    with pytest.raises(PackproofError, match="packing finds fault with a correct convolution"):
        self_test.require_sound_judgement(SENTENCE)


def test_a_judgement_that_raises_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "incorrect_verdicts", lambda: 1 / 0)
    with pytest.raises(PackproofError, match=r"its self-test fails: ZeroDivisionError: division by zero\. Use torch"):
        self_test.require_sound_judgement(SENTENCE)
