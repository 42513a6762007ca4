"""The release gate: every bug of the museum is detected at the standard profile, and no correct kernel fails.

The property that detected each, and how soon, is printed at the end of the run (tests/conftest.py).
"""

from collections.abc import Callable, Iterator
from itertools import cycle

import pytest

from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import CellFinished, Verdict
from packproof.museum import Control, classes, controls, entries
from packproof.proof.museum.detect import detect
from packproof.properties.declarations.promises import Promises

ENTRIES = entries()
CONTROLS = controls()
DTYPES = ("float64", "float32", "bfloat16", "float16")
MOST_SECONDS = 20.0


def failures(control: Control, profile: str, dtypes: tuple[str, ...], seed: int = 0) -> list[object]:
    request = CheckRequest(
        target=control.kernel,
        op=control.op,
        dtypes=dtypes,
        profile=profile,
        seed=seed,
        promises=Promises(**control.promises),
        questions=False,
    )
    found = [v for v in _verdicts(request) if v.failure is not None]
    return [(v.cell.property, v.cell.dtype, v.failure and v.failure.lines) for v in found]


def _verdicts(request: CheckRequest) -> Iterator[Verdict]:
    return (event.verdict for event in run_check(request) if isinstance(event, CellFinished))


def test_every_class_has_a_bug_that_was_found_somewhere() -> None:
    assert {entry.bug_class for entry in ENTRIES.values() if entry.links} == set(classes())


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if not entry.needs_gpu])
def test_a_bug_is_detected(name: str, record_property: Callable[[str, object], None]) -> None:
    done = detect(ENTRIES[name], profile="standard", device="cpu")
    record_property(
        "detection", {"bug": name, "by": done.detected_by, "examples": done.examples, "seconds": done.seconds}
    )
    assert not done.missed, ENTRIES[name].title
    assert not any("Error: " in line for line in done.lines), "it fails through an error of packproof"
    assert done.seconds < MOST_SECONDS


# one kernel in twelve, dtypes alternate; `packproof museum alarms`, which `make proof` runs, takes all of both
@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize(("name", "dtype"), list(zip(list(CONTROLS)[::12], cycle(DTYPES), strict=False)))
def test_a_correct_kernel_does_not_fail(name: str, dtype: str) -> None:
    assert failures(CONTROLS[name], "quick", (dtype,)) == []
