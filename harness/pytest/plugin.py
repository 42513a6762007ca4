"""The pytest plugin: a test marked with a kernel runs once for each property and dtype.

    @pytest.mark.packproof("my_kernels:conv", op="causal_conv1d", dtypes=["fp32", "bf16"])
    def test_conv(proof):
        proof()

The marker takes the arguments of `packproof.check`. Nothing but pytest is imported until a test carries it. Tests
without it are left alone: the markers `gpu` and `slow` only affect tests that also carry it.

Under pytest-xdist each worker uses one GPU, and tests alternate between kernels, dtypes and properties. With
`--packproof-device cuda` a worker sees no other GPU, whatever it runs, and `-n auto` starts several workers per GPU.
"""

import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from packproof.harness.pytest.finding import MARKER, PlainFailure, WrongCall, point_report_to
from packproof.harness.pytest.options import add_options, option_value, require_ini
from packproof.harness.pytest.proof import Proof

MARKERS = (
    "packproof(target, op=None, dtypes=None, properties=None, ...): check a kernel; the test takes the fixture `proof`",
    "gpu: a kernel that is checked on cuda only; skipped if the run uses cpu",
    "slow: a kernel that is checked only with --packproof-slow",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    require_ini(config)


@pytest.hookimpl(optionalhook=True, tryfirst=True)  # before xdist's own hook, whichever plugin was loaded first
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """The workers for `-n auto` on cuda, by GPU. None for `-n logical` or if xdist's own variable is set."""
    from packproof.harness.process import worker_count  # noqa: PLC0415

    has_explicit_count = config.getoption("numprocesses") != "auto" or "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ
    return None if has_explicit_count or not _on_cuda(config) else worker_count()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Give each worker of a run on cuda its GPU through its environment, before anything initializes CUDA."""
    from packproof.harness.process import gpu_environment  # noqa: PLC0415

    if _on_cuda(config):
        for number, spec in enumerate(specs):
            spec.env.update(gpu_environment(number))


def _on_cuda(config: pytest.Config) -> bool:
    return bool(option_value(config, "device")[0] == "cuda")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    nearest_mark = metafunc.definition.get_closest_marker("packproof")
    if nearest_mark is None:
        return
    if "proof" not in metafunc.fixturenames:
        raise _wrong_call(
            metafunc, f"{MARKER}the test has no argument `proof`, which checks the kernel when it is called"
        )
    _start_zygote(metafunc.config)
    marks = [mark for mark in metafunc.definition.own_markers if mark.name == "packproof"] or [nearest_mark]
    requests = _requests(marks, metafunc)
    metafunc.parametrize("proof", list(requests.values()), indirect=True, ids=list(requests))


def _start_zygote(config: pytest.Config) -> None:
    """Start the zygote, from which kernel processes are forked, if the device is known.

    Both pytest and the zygote import for seconds, so they do it side by side.
    """
    from packproof.harness.process import shared_zygote  # noqa: PLC0415  (does not import torch)

    device, _ = option_value(config, "device")
    if device and not config.option.collectonly:
        shared_zygote(interpreted=device == "cpu")


def _requests(marks: Sequence[pytest.Mark], metafunc: pytest.Metafunc) -> dict[str, Any]:
    """One CheckRequest for each test by its id; WrongCall for an invalid marker."""
    from packproof.base.errors import UsageError  # noqa: PLC0415
    from packproof.harness.pytest import marker  # noqa: PLC0415

    try:
        return marker.requests(marks, metafunc.config)
    except UsageError as error:
        problem = f"{MARKER}{error}"
    except pytest.UsageError as error:
        problem = str(error)
    raise _wrong_call(metafunc, problem)


def _wrong_call(metafunc: pytest.Metafunc, problem: str) -> WrongCall:
    path, line, _ = metafunc.definition.reportinfo()
    return WrongCall(Path(path), (line or 0) + 1, problem)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    proof_positions = [position for position, item in enumerate(items) if item.get_closest_marker("packproof")]
    for position in proof_positions:
        if reason := _skip_reason(items[position], config):
            items[position].add_marker(pytest.mark.skip(reason=reason))
    if proof_positions and hasattr(config, "workerinput"):
        from packproof.harness.pytest.xdist_order import interleave_tests  # noqa: PLC0415

        for position, item in zip(
            proof_positions, interleave_tests([items[position] for position in proof_positions]), strict=True
        ):
            items[position] = item


def _skip_reason(item: pytest.Item, config: pytest.Config) -> str:
    """Why the markers `slow` or `gpu` exclude a kernel from this run; "" if they do not."""
    if item.get_closest_marker("slow") and not option_value(config, "slow")[0]:
        return "slow: checked with --packproof-slow"
    if item.get_closest_marker("gpu") and item.callspec.params["proof"].device != "cuda":  # type: ignore[attr-defined]
        on_cpu = option_value(config, "device")[0] == "cpu"
        reason = "this run uses cpu" if on_cpu else "torch sees no CUDA device here"
        return f"gpu: checked on cuda only, and {reason}"
    return ""


@pytest.fixture
def proof(request: pytest.FixtureRequest) -> Proof:
    """Call it to check the kernel that the marker `packproof` names."""
    if not hasattr(request, "param"):
        raise PlainFailure("`proof` needs a kernel to check: mark the test with @pytest.mark.packproof(target)")
    return Proof(request.param, lambda *fact: request.node.user_properties.append(fact))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    result = yield
    if isinstance(fixture_value := pyfuncitem.funcargs.get("proof"), Proof) and not fixture_value.called:
        raise PlainFailure("the test ended without calling proof(): nothing was checked")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    path, line, _ = item.reportinfo()
    point_report_to(Path(path), (line or 0) + 1, report, call.excinfo and call.excinfo.value)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    if report.call.excinfo and isinstance(error := report.call.excinfo.value, WrongCall):
        point_report_to(error.path, error.line, report, error)
        if hasattr(collector.config, "workerinput"):
            report.longrepr = str(error)  # xdist shows a text once, and an object once for each worker
    return report
