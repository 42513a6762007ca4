"""The release gate: every bug of the museum is convicted at the standard profile, and no right kernel is accused.

What convicted each, and how soon, is printed at the end of the run (tests/conftest.py).
"""

from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import pytest

from packproof.harness.engine.check import run_check
from packproof.harness.engine.request import CheckRequest
from packproof.harness.results.events import CellFinished, Verdict
from packproof.harness.validation.museum.detect import convict
from packproof.museum import Control, classes, controls, entries
from packproof.properties.promises import Promises

ENTRIES = entries()
CONTROLS = controls()
DTYPES = ("float64", "float32", "bfloat16", "float16")
MOST_SECONDS = 20.0


def accusations(control: Control, profile: str, dtypes: tuple[str, ...], seed: int = 0) -> list[object]:
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
def test_a_bug_is_convicted(name: str, record_property: Callable[[str, object], None]) -> None:
    done = convict(ENTRIES[name], profile="standard", device="cpu")
    record_property("conviction", {"bug": name, "by": done.by, "examples": done.examples, "seconds": done.seconds})
    assert not done.missed, ENTRIES[name].title
    assert not any("Error: " in line for line in done.lines), "it is wrong by an accident of ours"
    assert done.seconds < MOST_SECONDS


# alternating: `packproof museum alarms`, which `make proof` runs, takes all four for each
@pytest.mark.parametrize(("name", "dtype"), list(zip(CONTROLS, cycle(DTYPES), strict=False)))
def test_a_right_kernel_is_not_accused(name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert accusations(CONTROLS[name], "quick", (dtype,)) == []
