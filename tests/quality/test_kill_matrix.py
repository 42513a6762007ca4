"""The release gate: every planted bug is convicted by the standard profile, and no correct kernel is accused.

The kill matrix, bug by property, is printed at the end of the run (tests/conftest.py).
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from packproof.harness.check import run_check
from packproof.harness.events import CellFinished, Verdict
from packproof.harness.plan import CheckRequest
from packproof.properties.promises import Promises
from tests.planted import attention, convolution, rotary, scan, ssd

MODULES = {"causal_conv1d": convolution, "selective_scan": scan, "ssd": ssd, "rope": rotary, "attention": attention}
BUGS = [(op, bug) for op, module in MODULES.items() for bug in module.BUGS]
CORRECT = [(op, name) for op, module in MODULES.items() for name in module.PROMISES]
DTYPES = ("float64", "float32", "bfloat16", "float16")
PAIRS = [("float32", "bfloat16"), ("float64", "float16")]  # the long run over seeds takes all four for each


def verdicts(op: str, name: str, profile: str, dtypes: tuple[str, ...], seed: int = 0) -> Iterator[Verdict]:
    module = MODULES[op]
    request = CheckRequest(
        target=f"{Path(module.__file__ or '')}:{name}",
        op=op,
        dtypes=dtypes,
        profile=profile,
        seed=seed,
        promises=Promises(**module.PROMISES.get(name, module.PROMISES["correct"])),
    )
    for event in run_check(request):
        if isinstance(event, CellFinished):
            yield event.verdict


def test_there_are_65_bugs() -> None:
    assert len(BUGS) == 65


@pytest.mark.parametrize(("op", "bug"), BUGS)
def test_a_planted_bug_is_convicted(
    op: str, bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """The golden cases are where the standard profile begins: what they convict, it convicts."""
    monkeypatch.chdir(tmp_path)
    started = time.monotonic()
    after: dict[str, str] = {}
    seconds = math.inf
    for verdict in verdicts(op, bug, "quick", ("float32",)):
        failed = verdict.status == "failed"
        after[verdict.cell.property] = (
            str(verdict.examples) if failed else {"passed": "-", "skipped": "."}[verdict.status]
        )
        if failed:
            seconds = min(seconds, time.monotonic() - started)
    record_property("kills", {"bug": bug, "after": after, "seconds": seconds})
    assert seconds < math.inf, f"{bug}: {MODULES[op].BUGS[bug]}"


@pytest.mark.parametrize(("op", "name", "dtypes"), [(*form, PAIRS[k % 2]) for k, form in enumerate(CORRECT)])
def test_a_correct_kernel_is_not_accused(
    op: str, name: str, dtypes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    accused = [
        (v.cell.property, v.cell.dtype, v.failure.lines)
        for v in verdicts(op, name, "quick", dtypes)
        if v.failure is not None
    ]
    assert accused == []


@pytest.mark.skipif("PACKPROOF_SEEDS" not in os.environ, reason="set PACKPROOF_SEEDS=20 for the long run over seeds")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "name"), CORRECT)
def test_a_correct_kernel_is_not_accused_over_seeds(
    op: str, name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in range(int(os.environ["PACKPROOF_SEEDS"])):
        accused = [
            (v.cell.property, v.cell.dtype, v.failure.lines)
            for v in verdicts(op, name, "quick" if seed else "standard", (dtype,), seed)
            if v.failure is not None
        ]
        assert accused == [], seed
