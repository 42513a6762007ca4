"""What an untried release of torch or triton leads to: its self-test, and one sentence in the run's notes."""

import pytest

from packproof import version as releases
from packproof.base.errors import PackproofError
from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.process.execution.self_test import (
    correct,
    incorrect,
    incorrect_verdicts,
    require_sound_judgement,
)
from packproof.harness.report.events import RunStarted

SENTENCE = "torch 9.9.0 is newer than what packproof was tried with (2.9 to 2.15)"


def notes() -> tuple[str, ...]:
    """Those of a run that name releases newer than any that was tried."""
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
    monkeypatch.setattr(releases, "TRIED", {})
    assert notes() == ()
    releases.TRIED.update(dict.fromkeys(("torch", "triton"), ("0.1", "0.2")))
    torch, triton = notes()
    assert torch.startswith("torch ")
    assert triton.startswith("triton ")
    for note in (torch, triton):
        assert note.endswith(" is newer than what packproof was tried with (0.1 to 0.2); self-test passed")


def test_a_correct_kernel_passes_and_an_incorrect_one_fails() -> None:
    assert incorrect_verdicts(correct, incorrect) == []
    require_sound_judgement(SENTENCE)


def test_a_judgement_that_misses_an_incorrect_kernel_is_refused() -> None:
    with pytest.raises(PackproofError) as found:
        require_sound_judgement(SENTENCE, (correct, correct))
    assert str(found.value).startswith(
        f"{SENTENCE}, and its self-test fails: reference finds nothing wrong in an incorrect convolution; "
    )
    assert str(found.value).endswith(f"Use torch {releases.tried('torch')}.")


def test_a_judgement_that_fails_a_correct_kernel_is_refused() -> None:
    with pytest.raises(PackproofError, match="packing finds fault with a correct convolution"):
        require_sound_judgement(SENTENCE, (incorrect, incorrect))


def test_a_judgement_that_raises_is_refused() -> None:
    def raises(x, weight, *, cu_seqlens):
        raise NotImplementedError("no convolution here")  # a refusal, which no law turns into a violation

    with pytest.raises(PackproofError, match=r"its self-test fails: \S*Refusal: .*no convolution here.*\. Use torch"):
        require_sound_judgement(SENTENCE, (raises, incorrect))
