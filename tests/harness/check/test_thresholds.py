"""Kernels that are incorrect past a constant of their source, or past a power of two: detected, on a CPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from packproof.cli import main
from packproof.harness.check.check import run_check
from packproof.harness.check.large_cases import CaseTimes
from packproof.harness.check.replay import replay
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import CellFinished, FailureFound, Verdict
from packproof.properties.cases.case import Case

KERNELS = Path(__file__).with_name("threshold_kernels.py")
ALL = ["tokens", "sequences", "longest sequence", "channels"]
AT_QUICK = (
    "tokens_past_a_literal",
    "length_past_a_config",
    "sequences_past_a_module",
    "tokens_at_a_literal",
    "channels_past_a_literal",
    "requests_past_a_literal",
)
AT_STANDARD = (
    "tokens_past_a_large_literal",
    "tokens_past_a_shift",
    "length_past_a_product",
    "sequences_past_a_default",
    "length_past_a_default",
    "tokens_past_a_closure",
    "gradient_past_a_literal",
)
WITHOUT_THE_SOURCE = ("hidden_tokens", "hidden_tokens_4096", "hidden_sequences_300", "hidden_length")
AT_THOROUGH = ("hidden_tokens_65536", "hidden_sequences")

PROFILES = {"quick": AT_QUICK, "standard": (*AT_STANDARD, *WITHOUT_THE_SOURCE), "thorough": AT_THOROUGH}
SAMPLE = (
    "tokens_past_a_literal",
    "sequences_past_a_module",
    "channels_past_a_literal",
    "gradient_past_a_literal",
    "hidden_tokens",
)
"""Tokens, sequences, channels, a gradient, and a number that is not in the source; the others are a proof."""

pytestmark = pytest.mark.usefixtures("working_folder")


def request(name: str, profile: str, **fields: Any) -> CheckRequest:
    settings: dict[str, Any] = {"dtypes": ("float32",), "properties": ("reference",), "questions": False, **fields}
    op = "causal_conv1d_update" if name == "requests_past_a_literal" else "causal_conv1d"
    return CheckRequest(f"{KERNELS}:{name}", op, profile=profile, **settings)


def first_failure(name: str, profile: str) -> Verdict | None:
    """The verdict with the first failing case, before it is made small."""
    events = run_check(request(name, profile))
    return next((event.first_verdict for event in events if isinstance(event, FailureFound)), None)


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        pytest.param(profile, name, marks=() if name in SAMPLE else pytest.mark.proof)
        for profile, names in PROFILES.items()
        for name in names
    ],
)
def test_a_kernel_that_is_incorrect_past_a_size_is_detected(profile: str, name: str) -> None:
    verdict = first_failure(name, profile)
    assert verdict is not None
    assert verdict.failure is not None
    assert verdict.failure.lengths


def test_a_correct_kernel_with_the_same_constants_passes_and_the_reports_say_how_far_it_was_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    call = ["check", f"{KERNELS}:correct", "--op", "causal_conv1d", "--dtype", "fp32", "--property", "reference"]
    assert main.run([*call, "--device", "cpu", "--json", "report.json"]) == 0
    [result] = json.loads(Path("report.json").read_text())["results"]
    thresholds = {entry.pop("constant"): entry for entry in result["thresholds"]}
    assert list(thresholds) == [64, 300, 1000, 1024, 4096, 5000, 65_536]
    assert thresholds[300] == {"passed": ALL, "not_passed": []}
    assert thresholds[65_536] == {"passed": ["tokens", "sequences"], "not_passed": ["longest sequence", "channels"]}
    output = capsys.readouterr().out
    assert "constants of its source: judged past 64, 300" in output
    assert "65,536 in longest sequence" in output.splitlines()[-3]


def test_a_constant_beyond_the_profile_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    name = "tokens_past_a_large_literal"
    call = ["check", f"{KERNELS}:{name}", "--op", "causal_conv1d", "--dtype", "fp32", "--property", "reference"]
    assert main.run([*call, "--device", "cpu", "--profile", "quick"]) == 0
    assert f"judged not past 65,536 in {', '.join(ALL)}" in capsys.readouterr().out


def test_a_kernel_that_raises_for_many_channels_is_judged_by_the_other_cases() -> None:
    """It was not made for them, and says so in some way; what it returns for them would be judged."""
    [verdict] = [e.verdict for e in run_check(request("raises_past_channels", "quick")) if isinstance(e, CellFinished)]
    assert verdict.status == "passed"
    assert "301 channels: IndexError: tile 2" in verdict.reason
    assert verdict.thresholds is not None
    assert "channels" in verdict.thresholds.missing(300)


def test_a_failure_past_a_constant_is_made_small_and_replays() -> None:
    events = run_check(request("sequences_past_a_module", "quick"))
    [failure] = [event.verdict.failure for event in events if isinstance(event, CellFinished)]
    assert failure is not None
    assert failure.lengths == (1,) * 301
    assert "y is wrong in row 300 of the pack" in failure.lines
    assert replay(failure.replay).status == "failing"


def test_one_dtype_has_cases_past_thresholds() -> None:
    events = run_check(request("correct", "quick", dtypes=("bfloat16", "float32")))
    verdicts = {event.verdict.cell.dtype: event.verdict for event in events if isinstance(event, CellFinished)}
    assert verdicts["float32"].examples > verdicts["bfloat16"].examples
    assert verdicts["float32"].thresholds
    assert not verdicts["bfloat16"].thresholds


def large_case(tokens: int) -> Case:
    return Case((tokens,), "float32", (("d", 3),))


def test_a_large_case_is_judged_if_its_time_fits() -> None:
    times = CaseTimes(share=1.0)
    times.record(large_case(100), 1.0, is_large=False)
    assert times.affords(large_case(150))
    assert not times.affords(large_case(170))
    assert CaseTimes(share=1.0, least_seconds=2.0).affords(large_case(170))
    # a kernel that takes four times as long for twice the tokens
    times.record(large_case(9), 0.01, is_large=True)
    times.record(large_case(19), 0.04, is_large=True)
    assert times.affords(large_case(119))  # 1.44 s beside the 0.05 s so far
    assert not times.affords(large_case(129))
