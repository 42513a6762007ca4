"""A property, an op, a kernel, an adapter and a report, each from one place in a package outside the tree."""

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import packproof
from packproof.base.errors import UsageError
from packproof.cli import ending, main
from packproof.harness.check.check import run_check
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.failed import CheckFailed
from tests.in_process import imports_of

PAGE = Path(__file__).parent.parent / "docs/properties.md"
TOYS = {
    "laws": re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[0],
    "ops": """
        from packproof import Op


        def scaled(x, *, cu_seqlens):
            return 3 * x


        SCALED = Op("scaled", scaled, {"x": "t d"}, {"y": "t d"}, sizes=({"d": 3},))
    """,
    "kernels": """
        from packproof import adapters, kernel

        from toys.ops import SCALED, scaled

        correct = kernel(op=SCALED)(scaled)


        @kernel(op=SCALED)
        def shifted(x, *, cu_seqlens):
            return 3 * x + 1


        def _batched(x):
            return 3 * x  # (1, t, d)


        adapted = adapters.adapt(_batched, op=SCALED, tokens=adapters.Batched(), metadata={})
    """,
    "reports": """
        class Failures:
            def __init__(self):
                self.lines = []

            def __call__(self, event):
                failure = getattr(getattr(event, "verdict", None), "failure", None)
                if failure:
                    self.lines.append(f"{event.verdict.cell.property} {list(failure.lengths)}")
    """,
}


@pytest.fixture(autouse=True)
def _toys(working_folder: Path) -> Iterator[None]:
    package = working_folder / "toys"
    package.mkdir()
    for name, source in {"__init__": "", **TOYS}.items():
        (package / f"{name}.py").write_text(textwrap.dedent(source))
    with imports_of(working_folder):
        yield


HOMOGENEOUS = "toys.laws:HOMOGENEOUS"
OPTIONS = ("--property", HOMOGENEOUS, "--profile", "quick", "--dtype", "fp32", "--device", "cpu")


@pytest.mark.parametrize("target", ["toys.kernels:correct", "toys.kernels:adapted"])
def test_a_correct_kernel_is_judged_by_every_property_and_the_users(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["check", target, *OPTIONS, "--property", "reference,packing"]) == ending.SUCCESS
    assert "3 passed" in capsys.readouterr().out


def test_the_users_property_fails_an_incorrect_kernel_and_its_failure_is_replayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(["check", "toys.kernels:shifted", *OPTIONS, "--json", "results.json"]) == ending.FAILED
    [result] = json.loads(Path("results.json").read_text())["results"]
    assert (result["property"], result["status"]) == (HOMOGENEOUS, "failed")
    assert result["lengths"] == [1]
    [file] = Path(".packproof").glob("scaled-HOMOGENEOUS-*.json")
    assert main.run(["replay", str(file)]) == ending.FAILED
    assert "still failing" in capsys.readouterr().out


def test_a_report_is_what_takes_events() -> None:
    from toys.reports import Failures  # type: ignore[import-not-found]  # noqa: PLC0415

    report = Failures()
    request = CheckRequest("toys.kernels:shifted", dtypes=("float32",), properties=(HOMOGENEOUS,), profile="quick")
    ending.follow(run_check(request), [report])
    assert report.lines == [f"{HOMOGENEOUS} [1]"]


def test_a_property_is_an_object_in_python() -> None:
    from toys.kernels import shifted  # type: ignore[import-not-found]  # noqa: PLC0415
    from toys.laws import HOMOGENEOUS as law  # type: ignore[import-not-found]  # noqa: N811, PLC0415

    with pytest.raises(CheckFailed, match="FAILED  homogeneous"):
        packproof.check(shifted, device="cpu", properties=[law, "causality"], dtypes=["fp32"], profile="quick")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("toys.laws:nothing", "toys.laws has no nothing"),
        ("toys.ops:SCALED", "property: 'toys.ops:SCALED' is of type Op, expected a packproof.Property"),
        (packproof.Property("packing", "Another law.", lambda kernel, case: iter(())), "give yours another name"),
    ],
)
def test_what_is_no_property_is_refused_in_one_line(given: str | packproof.Property, words: str) -> None:
    with pytest.raises(UsageError, match=r"^[^\n]*$") as caught:
        next(run_check(CheckRequest("toys.kernels:correct", properties=(given,))))
    assert words in str(caught.value)
