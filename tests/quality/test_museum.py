"""Bugs of the museum are detected at the standard profile, and no correct kernel fails.

Every third bug here, for time. The property that detected each, and how soon, is printed at the end of the run
(tests/conftest.py). `make proof`, the release gate, runs each kernel in a process of its own, as a check does
(`packproof museum run`), and judges every correct one in every dtype (`packproof museum alarms`).
"""

from collections.abc import Callable, Iterator

import pytest

from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.process.execution.execute import InProcess
from packproof.harness.process.worker import Worker
from packproof.harness.report.events import CellFinished, Verdict
from packproof.museum import Control, classes, controls, entries
from packproof.proof.museum.detect import Detection, detect, detect_with
from packproof.properties.declarations.declaration import describe_kernel
from packproof.properties.declarations.promises import Promises
from tests.sweeps import sweep

ENTRIES = entries()
CONTROLS = controls()
DTYPES = ("float64", "float32", "bfloat16", "float16")
MOST_EXAMPLES = 40
NEVER_RETURNS = "S28"
FIRST_IN_ITS_PROCESS = "R20"
RAISING = ("A27", "N15", "R20")  # their bug is an exception
INTERPRETED = [
    *(name for name, entry in ENTRIES.items() if entry.kernel.startswith("packproof.museum.tiles:")),
    *("C54", "C55", "C56"),  # those of the others that are in Triton
]
IN_TORCH = [
    name
    for name, e in ENTRIES.items()
    if not e.needs_gpu and name not in (NEVER_RETURNS, FIRST_IN_ITS_PROCESS, *INTERPRETED)
]
Record = Callable[[str, object], None]


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


def check_detected(done: Detection, record_property: Record) -> None:
    record_property(
        "detection", {"bug": done.entry.id, "by": done.detected_by, "examples": done.examples, "seconds": done.seconds}
    )
    assert not done.missed, done.entry.title
    raises = any("Error: " in line for line in done.lines)
    assert raises == (done.entry.id in RAISING), "it fails through an error of packproof"
    assert done.examples <= MOST_EXAMPLES


@sweep("name", IN_TORCH[::3], IN_TORCH)
def test_a_bug_is_detected(name: str, record_property: Record) -> None:
    """In this process: one for each kernel takes as long as all of its runs."""
    kernel = ENTRIES[name].load()
    done = detect_with(InProcess(kernel), ENTRIES[name], describe_kernel(kernel), profile="standard")
    check_detected(done, record_property)


def test_a_bug_in_triton_is_detected(record_property: Record) -> None:
    """The others: interpreted_museum.py."""
    check_detected(detect(ENTRIES[INTERPRETED[0]], profile="standard", device="cpu"), record_property)


def test_a_bug_of_the_first_call_of_a_process_is_detected(record_property: Record) -> None:
    check_detected(detect(ENTRIES[FIRST_IN_ITS_PROCESS], profile="standard", device="cpu"), record_property)


@pytest.mark.proof
def test_a_kernel_that_never_returns_is_detected(record_property: Record) -> None:
    with Worker(ENTRIES[NEVER_RETURNS].kernel, time_limit=0.25) as worker:
        done = detect_with(worker, ENTRIES[NEVER_RETURNS], worker.describe(), profile="standard")
    check_detected(done, record_property)
    assert "gave no answer within 0.25 s" in done.lines


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("rotary.as_matrix", "float16"), pytest.param("boundaries.conv_by_ids", "bfloat16", marks=pytest.mark.proof)],
)
def test_a_correct_kernel_does_not_fail(name: str, dtype: str) -> None:
    assert failures(CONTROLS[name], "quick", (dtype,)) == []
