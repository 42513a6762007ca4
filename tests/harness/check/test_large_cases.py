"""Large cases that this machine is too small for are not judged; kernels that break there fail."""

from pathlib import Path

import pytest

from packproof.base import machine
from packproof.harness.check.check import run_check
from packproof.harness.check.large_cases import CaseTimes
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import CellFinished, Verdict
from packproof.properties.cases.case import Case

KERNELS = Path(__file__).with_name("large_kernels.py")

pytestmark = pytest.mark.usefixtures("working_folder")


def verdict_of(kernel: str, op: str = "SQUARE") -> Verdict:
    request = CheckRequest(
        f"{KERNELS}:{kernel}",
        f"{KERNELS}:{op}",
        profile="quick",
        dtypes=("float32",),
        properties=("reference",),
        domain=("slack == 0",),
        questions=False,
        timeout=1.0,
    )
    [verdict] = [event.verdict for event in run_check(request) if isinstance(event, CellFinished)]
    return verdict


@pytest.mark.parametrize(
    ("kernel", "op", "reason"),
    [
        ("correct", "ROOMY_SQUARE", "the reference does not fit into the memory of this machine"),
        pytest.param("correct", "SLOW_SQUARE", "it took more than 6 s", marks=pytest.mark.proof),
        ("killed", "SQUARE", "killed by SIGKILL (Killed), as where memory has run out"),
    ],
)
def test_a_case_too_large_for_the_machine_is_not_judged(kernel: str, op: str, reason: str) -> None:
    verdict = verdict_of(kernel, op)
    assert verdict.status == "passed"
    assert 1 <= verdict.examples - verdict.judged <= 3  # no larger one of its kind is tried
    assert reason in verdict.reason
    assert verdict.thresholds is not None
    assert "not past 450 in" in str(verdict.thresholds)


@pytest.mark.parametrize(
    ("kernel", "fault"),
    [("crashing", "killed by SIGSEGV"), pytest.param("hanging", "gave no answer", marks=pytest.mark.proof)],
)
def test_a_kernel_that_ends_its_process_past_a_constant_fails(kernel: str, fault: str) -> None:
    verdict = verdict_of(kernel)
    assert verdict.failure is not None
    assert any(fault in line for line in verdict.failure.lines)


def test_a_kernel_that_refuses_large_packs_is_judged_by_the_others_and_its_limit_is_named() -> None:
    verdict, plain = verdict_of("limited"), verdict_of("correct")
    assert verdict.status == "passed"
    assert verdict.classes == plain.classes
    assert verdict.refused
    assert verdict.domain == ()
    [limit] = verdict.limits
    assert "takes 450 tokens at most" in limit.text


def test_free_memory_is_within_the_limit_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CONTAINER", tmp_path)
    assert machine.free_host_bytes() > 1 << 20
    for name, text in (("max", "5000"), ("current", "3000"), ("stat", "anon 1\ninactive_file 700\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert machine.free_host_bytes() == 2700
    (tmp_path / "memory.max").write_text("max")
    assert machine.free_host_bytes() > 1 << 20


def test_the_time_for_a_core_is_known_on_this_machine() -> None:
    waited = machine.seconds_waited()
    assert 0 <= waited <= machine.seconds_waited()


def test_a_case_that_took_no_time_of_its_own_tells_nothing_about_larger_ones() -> None:
    times, cases = CaseTimes(share=1.0), [Case((n,), "float32", (("d", 1),)) for n in (10, 100, 400, 1600)]
    times.record(cases[0], 1.0, is_large=False)
    for case, seconds in zip(cases[1:3], (0.1, 0.0), strict=True):  # the process waited for a core all the while
        times.record(case, seconds, is_large=True)
    assert times.affords(cases[3])
