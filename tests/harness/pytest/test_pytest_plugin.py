"""The pytest plugin in separate suites, with a fake engine that supplies the verdicts."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from packproof.base.errors import UsageError
from packproof.base.law_names import ON_REQUEST
from packproof.harness.check.request import CheckRequest
from packproof.harness.report.events import Cell, CellFinished, Event, Failure, RunFinished, RunStarted, Verdict
from packproof.properties.laws.catalogue import PROPERTIES
from tests.in_process import PLUGIN, environment, pytest_in

pytest_plugins = ["pytester"]
CudaAvailable = Callable[[bool], None]

SUITE = """
import pytest

@pytest.mark.packproof("my_kernels:conv", op="causal_conv1d", dtypes=["float32", "bf16"]{more})
def test_conv(proof):
    proof()
"""


def engine(request: CheckRequest) -> Iterator[Event]:
    """Fails `packing` in bfloat16 and skips `carry`; passes everything else; the module missing cannot be imported."""
    if request.target == "missing:conv":
        raise UsageError("missing:conv cannot be imported: no module named missing")
    [name], [dtype] = request.properties or (), request.dtypes or ()
    cell = Cell(str(request.op), str(request.target), str(name), dtype, request.device)
    yield RunStarted((cell,), request.profile, request.seed)
    verdict = Verdict(cell, "eager", "passed", 10, 0.1)
    if name == "carry":
        verdict = Verdict(cell, "eager", "skipped", 0, 0.0, reason="the kernel takes no initial state")
    if name == "packing" and dtype == "bfloat16":
        failure = Failure(
            (1, 1), "y", (f"sequence 1, token 0: wrong; {request.profile} {request.seed}",), 2, 5, "r.json"
        )
        verdict = Verdict(cell, "eager", "failed", 2, 0.1, failure=failure)
        if request.expected_failures:
            verdict = replace(verdict, status="expected", reason="expected: issue 12")
    yield CellFinished(verdict)
    yield RunFinished((verdict,), 0.1)


@pytest.fixture
def suite(pytester: pytest.Pytester, fake_check: Callable[..., None]) -> pytest.Pytester:
    fake_check(engine)
    return pytester


def run(suite: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    suite.makepyfile(source)
    return suite.runpytest_inprocess(*PLUGIN, "-p", "no:cacheprovider", *arguments)


def test_one_test_for_each_property_and_dtype(suite: pytest.Pytester) -> None:
    result = run(suite, SUITE.format(more=""), "-v")
    result.assert_outcomes(passed=2 * len(PROPERTIES.keys() - ON_REQUEST) - 3, failed=1, skipped=2)
    result.stdout.fnmatch_lines(["*::test_conv?reference-fp32? PASSED*", "*::test_conv?packing-bf16? FAILED*"])


def test_a_skip_has_a_reason_at_the_test(suite: pytest.Pytester) -> None:
    result = run(suite, SUITE.format(more=", properties=['carry']"), "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED ?2? test_*.py:3: the kernel takes no initial state"])


def test_a_failure_shows_the_report_and_no_trace(suite: pytest.Pytester) -> None:
    result = run(
        suite, SUITE.format(more=", properties=['packing']"), "--packproof-profile=quick", "--packproof-seed=5"
    )
    result.assert_outcomes(passed=1, failed=1)
    shown = result.stdout.str()
    report = (
        "causal_conv1d · my_kernels:conv · FAILED  packing (y)   bf16, eager\n"
        "    lengths [1, 1]                   found in example 2, smallest of 5 tried\n"
        "    sequence 1, token 0: wrong; quick 5\n"
        "    packproof replay r.json\n"
    )
    assert report in shown
    assert "pytest_plugin.py" not in shown
    assert "Traceback" not in shown


def test_a_contract_has_the_op_and_the_dtypes(suite: pytest.Pytester) -> None:
    """Named on the command line, in the ini file or by the marker. An option with another value is a wrong marker."""
    suite.makefile(".json", contract='{"op": "causal_conv1d", "dtypes": ["fp32", "fp16"]}')
    source = "import pytest\n@pytest.mark.packproof('m:conv', properties=['packing']{})\ndef test(proof): proof()"
    result = run(suite, source.format(""), "--packproof-contract=contract.json", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*?packing-fp32? PASSED*", "*?packing-fp16? PASSED*"])
    run(suite, source.format(", contract='contract.json', dtypes=['fp16']")).assert_outcomes(passed=1)
    result = run(suite, source.format(", op='rope', contract='contract.json'"))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*op: the contract contract.json fixes causal_conv1d; leave op out"])


def test_an_expected_failure_is_an_xfail_with_its_layout(suite: pytest.Pytester) -> None:
    """And its report is in the output of the test. The option and the marker name the file; here the engine knows."""
    suite.makefile(".toml", known="")
    result = run(suite, SUITE.format(more=", properties=['carry', 'packing'], expected_failures='known.toml'"), "-rx")
    result.assert_outcomes(passed=1, xfailed=1, skipped=2)
    result.stdout.fnmatch_lines(
        ["XFAIL *packing-bf16? - issue 12: conv packing (y) at ?1, 1?: sequence 1, token 0: wrong*"]
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (", properties=['packin']", "no property is called 'packin'; did you mean packing?*"),
        (", profil='quick'", "'profil' is not an argument; did you mean 'profile'?"),
        (", profile='fast'", "no profile is called 'fast'*"),
    ],
    ids=["property", "argument", "profile"],
)
def test_a_wrong_marker_is_one_error_at_the_test(suite: pytest.Pytester, more: str, words: str) -> None:
    result = run(suite, SUITE.format(more=more))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"test_*.py:3: @pytest.mark.packproof: {words}", f"ERROR test_*.py - {words[:20]}*"])
    assert "During handling" not in result.stdout.str()
    assert result.stdout.str().count("@pytest.mark.packproof: ") == 1


def test_a_target_that_cannot_be_imported_fails_with_one_line(suite: pytest.Pytester) -> None:
    source = "import pytest\n@pytest.mark.packproof('missing:conv', properties=['packing'])\ndef test(proof): proof()"
    result = run(suite, source)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["missing:conv cannot be imported: no module named missing"])
    assert "During handling" not in result.stdout.str()


@pytest.mark.parametrize(
    ("source", "outcome", "words"),
    [
        ("def test(proof): proof()", "errors", "`proof` needs a kernel to check: mark the test with*"),
        (
            "@pytest.mark.packproof('m:f')\ndef test(): pass",
            "errors",
            "*: the test has no argument `proof`, which checks the kernel when it is called",
        ),
        (
            "@pytest.mark.packproof('m:f', dtypes=['fp32'], properties=['memory'])\ndef test(proof): pass",
            "failed",
            "the test ended without calling proof(): nothing was checked",
        ),
    ],
    ids=["no marker", "no fixture", "no call"],
)
def test_a_test_that_checks_nothing_does_not_pass(
    suite: pytest.Pytester, source: str, outcome: str, words: str
) -> None:
    result = run(suite, f"import pytest\n{source}")
    result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines([words])


@pytest.mark.parametrize(
    ("marker", "arguments", "reason"),
    [
        ("gpu", (), "gpu: checked on cuda only, and torch sees no CUDA device here"),
        ("gpu", ("--packproof-device=cpu",), "gpu: checked on cuda only, and this run uses cpu"),
        ("slow", (), "slow: checked with --packproof-slow"),
    ],
)
def test_what_is_marked_and_not_requested_is_skipped_with_its_reason(
    suite: pytest.Pytester, cuda_available: CudaAvailable, marker: str, arguments: tuple[str, ...], reason: str
) -> None:
    cuda_available(False)
    source = SUITE.format(more=", properties=['memory']").replace("@", f"@pytest.mark.{marker}\n@")
    result = run(suite, source, "-rs", "--strict-markers", *arguments)
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines([f"SKIPPED*{reason}"])


def test_what_is_marked_runs_when_requested(suite: pytest.Pytester, cuda_available: CudaAvailable) -> None:
    cuda_available(True)
    source = SUITE.format(more=", properties=['memory']").replace("@", "@pytest.mark.slow\n@pytest.mark.gpu\n@")
    run(suite, source, "--packproof-slow").assert_outcomes(passed=2)


def test_markers_of_a_test_without_a_kernel_are_left_alone(suite: pytest.Pytester) -> None:
    run(suite, "import pytest\n@pytest.mark.slow\n@pytest.mark.gpu\ndef test(): pass").assert_outcomes(passed=1)


def test_a_requested_gpu_that_is_missing_is_an_error(suite: pytest.Pytester, cuda_available: CudaAvailable) -> None:
    cuda_available(False)
    source = SUITE.format(more="").replace("@", "@pytest.mark.gpu\n@")
    result = run(suite, source, "--packproof-device=cuda")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*.py:3: --packproof-device cuda: torch * sees no CUDA device here; use --packproof-device cpu"]
    )


def test_the_summary_has_the_finding(suite: pytest.Pytester) -> None:
    with environment(COLUMNS="160"):
        result = run(suite, SUITE.format(more=", properties=['packing']"))
    result.stdout.fnmatch_lines(
        ["FAILED *?packing-bf16? - conv packing (y) at ?1, 1?: sequence 1, token 0: wrong; standard 0"]
    )


@pytest.mark.parametrize(
    ("command_line", "marker", "ini", "used"),
    [
        ((), "", "", "standard 0"),
        ((), "", "packproof_profile = quick\npackproof_seed = 3", "quick 3"),
        ((), ", seed=4", "packproof_profile = quick\npackproof_seed = 3", "quick 4"),
        (("--packproof-seed=0",), ", seed=4, profile='quick'", "packproof_seed = 3", "quick 0"),
    ],
    ids=["default", "ini", "marker", "command line"],
)
def test_the_command_line_comes_before_the_marker_and_the_marker_before_the_ini_file(
    suite: pytest.Pytester, command_line: tuple[str, ...], marker: str, ini: str, used: str
) -> None:
    suite.makeini(f"[pytest]\n{ini}")
    result = run(suite, SUITE.format(more=f", properties=['packing']{marker}"), *command_line)
    result.stdout.fnmatch_lines([f"*sequence 1, token 0: wrong; {used}"])


def test_a_run_marked_slow_in_the_ini_file(suite: pytest.Pytester) -> None:
    suite.makeini("[pytest]\npackproof_slow = true\npackproof_device = cpu")
    source = SUITE.format(more=", properties=['memory']").replace("@", "@pytest.mark.slow\n@")
    run(suite, source).assert_outcomes(passed=2)


def test_junit_records_what_was_judged_and_the_replay_file(suite: pytest.Pytester) -> None:
    result = run(suite, SUITE.format(more=", properties=['packing']"), "--junitxml=run.xml")
    result.stdout.no_fnmatch_line("*record_property is incompatible*")
    cases = ElementTree.parse(suite.path / "run.xml").iter("testcase")
    kept = {str(case.get("name")): {p.get("name"): p.get("value") for p in case.iter("property")} for case in cases}
    passed, failed = kept["test_conv[packing-fp32]"], kept["test_conv[packing-bf16]"]
    assert (passed["op"], passed["property"], passed["tier"]) == ("causal_conv1d", "packing", "eager")
    assert (failed["lengths"], failed["replay"], failed["dtype"]) == ("[1, 1]", "r.json", "bf16")


def test_with_the_real_engine(tmp_path: Path) -> None:
    (tmp_path / "kernels_of_mine.py").write_text(
        "from packproof.refs import causal_conv1d\n"
        "def conv(x, weight, *, cu_seqlens):\n"
        "    return causal_conv1d(x, weight, cu_seqlens=cu_seqlens[[0, -1]])  # one sequence: the boundaries are lost\n"
    )
    marker = "@pytest.mark.packproof('kernels_of_mine.py:conv', op='causal_conv1d', dtypes=['fp32'], properties={})"
    tests = "def test_{}(proof): proof()\n"
    (tmp_path / "test_mine.py").write_text(
        f"import pytest\n{marker.format(['packing'])}\n{tests.format('packing')}"
        f"{marker.format(['determinism', 'carry'])}\n{tests.format('other')}"
    )
    done = pytest_in(tmp_path, "--packproof-profile=quick", "--packproof-device=cpu")
    assert "1 failed, 1 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "    lengths [1, 1] " in done.stdout
    assert "y in sequence 1 contains sequence 0" in done.stdout


def test_workers_of_xdist_send_a_wrong_marker_as_text(suite: pytest.Pytester) -> None:
    """xdist shows the same text of several workers once, and an object once for each worker."""
    suite.makeconftest("""
        def pytest_configure(config): config.workerinput = {}
        def pytest_collectreport(report):
            if report.failed: print("sent", repr(report.longrepr))
    """)
    result = run(suite, SUITE.format(more=", profil='quick'"), "-s", "-p", "no:xdist")
    result.stdout.fnmatch_lines(["*sent \"test_*.py:3: @pytest.mark.packproof: 'profil' is not an argument;*"])


def test_a_suite_without_kernels_does_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("import sys\ndef test(): assert 'torch' not in sys.modules")
    path = os.pathsep.join([str(Path(__file__).parents[3] / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", *PLUGIN, "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout
