"""The pytest plugin: a test marked with a kernel runs once for each property and dtype.

    @pytest.mark.packproof("my_kernels:conv", op="causal_conv1d", dtypes=["float32", "bfloat16"])
    def test_conv(proof):
        proof()

The marker takes the arguments of `packproof.check`. Nothing but pytest is imported until a test carries it. Tests
without it are left alone: the markers `gpu` and `slow` only affect tests that also carry it.

Under pytest-xdist each worker uses one GPU, and tests alternate between kernels, dtypes and properties. With
`--packproof-device cuda` a worker sees no other GPU, whatever it runs, and `-n auto` starts several workers per GPU.
"""

import dataclasses
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

MARKERS = (
    "packproof(target, op=None, dtypes=None, properties=None, ...): check a kernel; the test takes the fixture `proof`",
    "gpu: a kernel that is checked on cuda only; skipped if the run uses cpu",
    "slow: a kernel that is checked only with --packproof-slow",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("packproof")
    group.addoption("--packproof-profile", default="standard", help="how many examples: quick, standard or thorough")
    group.addoption("--packproof-device", help="cpu or cuda  [default: cuda if available]")
    group.addoption("--packproof-seed", type=int, default=0, help="another seed draws other examples")
    group.addoption("--packproof-slow", action="store_true", help="check the kernels of tests marked slow too")


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(optionalhook=True, tryfirst=True)  # before xdist's own hook, whichever plugin was loaded first
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """The workers for `-n auto` on cuda, by GPU. None for `-n logical` or if xdist's own variable is set."""
    from packproof.harness.worker import gpus  # noqa: PLC0415

    chosen = config.getoption("numprocesses") != "auto" or "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ
    return None if chosen or not _on_cuda(config) else gpus.workers()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Give each worker of a run on cuda its GPU through its environment, before anything initializes CUDA."""
    from packproof.harness.worker import gpus  # noqa: PLC0415

    if _on_cuda(config):
        for number, spec in enumerate(specs):
            spec.env.update(gpus.pinned(number))


def _on_cuda(config: pytest.Config) -> bool:
    return bool(config.getoption("packproof_device") == "cuda")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("packproof")
    if marker is None:
        return
    if "proof" not in metafunc.fixturenames:
        pytest.fail(f"{metafunc.definition.name} is marked packproof but has no argument `proof`", pytrace=False)
    _fork_soon(metafunc.config)
    requests = _requests(marker, metafunc.config)
    metafunc.parametrize("proof", list(requests.values()), indirect=True, ids=list(requests))


def _fork_soon(config: pytest.Config) -> None:
    """Start the process that kernel processes are forked from, if the device is known: both import for seconds."""
    from packproof.harness.worker import zygote_client  # noqa: PLC0415  (does not import torch)

    device = config.getoption("packproof_device")
    if device and not config.option.collectonly:
        zygote_client.shared(interpreted=device == "cpu")


def _requests(marker: pytest.Mark, config: pytest.Config) -> dict[str, Any]:
    """One CheckRequest for each property and dtype that the marker requests, by test id."""
    import torch  # noqa: PLC0415

    from packproof.harness.engine import request as requests  # noqa: PLC0415
    from packproof.harness.results import names  # noqa: PLC0415
    from packproof.properties.declaration import DEFAULT_DTYPES  # noqa: PLC0415
    from packproof.refs.errors import UsageError  # noqa: PLC0415

    run = {name: config.getoption(f"packproof_{name}") for name in ("profile", "device", "seed")}
    run["device"] = run["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        asked = requests.CheckRequest(
            *marker.args, **{"questions": bool(marker.kwargs.get("strict")), **run, **marker.kwargs}
        )
        dtypes = [names.dtype(name) for name in asked.dtypes or DEFAULT_DTYPES]
        requests.validate(asked := dataclasses.replace(asked, dtypes=tuple(dtypes)))
    except (TypeError, UsageError) as error:
        pytest.fail(f"@pytest.mark.packproof: {error}", pytrace=False)
    cells = [(law, kind) for law in asked.properties or tuple(asked.laws) for kind in dtypes]
    return {
        f"{getattr(law, 'name', law)}-{kind}": dataclasses.replace(asked, properties=(law,), dtypes=(kind,))
        for law, kind in cells
    }


class Proof:
    """When called, checks one property of a kernel at one dtype; fails with the report or skips with the reason."""

    def __init__(self, request: Any, record: Callable[[str, object], None]) -> None:
        self._request = request
        self._record = record
        self.called = False

    def __call__(self) -> None:
        from packproof.harness.engine import check  # noqa: PLC0415
        from packproof.harness.results import events, wording  # noqa: PLC0415
        from packproof.refs.errors import UsageError  # noqa: PLC0415

        self.called = True
        try:
            with pytest.MonkeyPatch.context() as processes:
                for name, value in self._gpu().items():
                    processes.setenv(name, value)
                end = [event for event in check.run_check(self._request) if isinstance(event, events.RunFinished)][-1]
        except UsageError as error:
            pytest.fail(str(error), pytrace=False)
        for verdict in end.verdicts:
            self._keep(verdict)
        if end.interrupted:
            raise KeyboardInterrupt
        failed = wording.failure_texts([v for v in end.verdicts if v.failed])
        if failed or end.error:
            pytest.fail("\n\n".join(failed) or end.error, pytrace=False)
        if unjudged := [v.reason for v in end.verdicts if v.status == "error"]:
            pytest.fail("; ".join(unjudged), pytrace=False)
        if inconclusive := [v.reason for v in end.verdicts if v.status == "inconclusive"]:
            pytest.fail("inconclusive: " + "; ".join(inconclusive), pytrace=False)
        if not any(verdict.status == "passed" for verdict in end.verdicts):
            pytest.skip("; ".join(verdict.reason for verdict in end.verdicts))

    def _gpu(self) -> dict[str, str]:
        """The environment that gives kernel processes one GPU, in a worker of pytest-xdist."""
        from packproof.harness.worker import gpus  # noqa: PLC0415

        worker = os.environ.get("PYTEST_XDIST_WORKER")
        return gpus.pinned(int(worker.removeprefix("gw"))) if worker and self._request.device == "cuda" else {}

    def _keep(self, verdict: Any) -> None:
        """Record the verdict as properties of the test, which xdist passes on and --junitxml contains."""
        cell = verdict.cell
        facts = {"op": cell.op, "target": cell.target, "property": cell.property, "dtype": cell.dtype}
        facts |= {"device": cell.device, "tier": verdict.tier, "examples": verdict.examples, "judged": verdict.judged}
        if verdict.failure:
            facts |= {"lengths": list(verdict.failure.lengths), "replay": verdict.failure.replay}
        for name, value in facts.items():
            self._record(name, value)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    judged = [at for at, item in enumerate(items) if item.get_closest_marker("packproof")]
    for at in judged:
        if reason := _not_now(items[at], config):
            items[at].add_marker(pytest.mark.skip(reason=reason))
    if judged and hasattr(config, "workerinput"):
        from packproof.harness.pytest_plugin.xdist_order import interleaved  # noqa: PLC0415

        for at, item in zip(judged, interleaved([items[at] for at in judged]), strict=True):
            items[at] = item


def _not_now(item: pytest.Item, config: pytest.Config) -> str:
    """Why the markers `slow` or `gpu` exclude a kernel from this run; "" if they do not."""
    if item.get_closest_marker("slow") and not config.getoption("packproof_slow"):
        return "slow: checked with --packproof-slow"
    if item.get_closest_marker("gpu") and item.callspec.params["proof"].device != "cuda":  # type: ignore[attr-defined]
        on_cpu = config.getoption("packproof_device") == "cpu"
        why = "this run uses cpu" if on_cpu else "torch sees no CUDA device here"
        return f"gpu: checked on cuda only, and {why}"
    return ""


@pytest.fixture
def proof(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Proof:
    """Call it to check the kernel that the marker `packproof` names."""
    if not hasattr(request, "param"):
        pytest.fail("`proof` needs a kernel to check: mark the test with @pytest.mark.packproof(target)", pytrace=False)
    return Proof(request.param, record_property)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    result = yield
    if isinstance(given := pyfuncitem.funcargs.get("proof"), Proof) and not given.called:
        pytest.fail("the test ended without calling proof(): nothing was checked", pytrace=False)
    return result
