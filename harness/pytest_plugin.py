"""The pytest plugin: a test that is marked with a kernel is run once for each property and dtype.

    @pytest.mark.packproof("my_kernels:conv", op="causal_conv1d", dtypes=["float32", "bfloat16"])
    def test_conv(proof):
        proof()

The marker takes the arguments of `packproof.check`. Nothing but pytest is imported until a test carries it.
"""

import dataclasses
from collections.abc import Generator
from typing import Any

import pytest

MARKER = (
    "packproof(target, op=None, dtypes=None, properties=None, ...): judge a kernel; the test takes the fixture `proof`"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("packproof")
    group.addoption("--packproof-profile", default="standard", help="how many examples: quick, standard or thorough")
    group.addoption("--packproof-device", help="cpu or cuda; where not given, cuda if there is one")
    group.addoption("--packproof-seed", type=int, default=0, help="another seed draws other examples")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "packproof(target, op=None, ...): judge a kernel; the test takes `proof`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("packproof")
    if marker is None:
        return
    if "proof" not in metafunc.fixturenames:
        pytest.fail(f"{metafunc.definition.name} is marked packproof but has no argument `proof`", pytrace=False)
    requests = _requests(marker, metafunc.config)
    metafunc.parametrize("proof", list(requests.values()), indirect=True, ids=list(requests))


def _requests(marker: pytest.Mark, config: pytest.Config) -> dict[str, Any]:
    """By test id, one CheckRequest for each property and dtype that the marker asks for."""
    import torch  # noqa: PLC0415

    from packproof.harness import names, plan, target  # noqa: PLC0415
    from packproof.properties.catalogue import PROPERTIES  # noqa: PLC0415
    from packproof.refs.errors import UsageError  # noqa: PLC0415

    run = {name: config.getoption(f"packproof_{name}") for name in ("profile", "device", "seed")}
    run["device"] = run["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        asked = plan.CheckRequest(*marker.args, **{**run, **marker.kwargs})
        dtypes = [names.dtype(name) for name in asked.dtypes or target.DEFAULT_DTYPES]
        plan.check_names(asked := dataclasses.replace(asked, dtypes=tuple(dtypes)))
    except (TypeError, UsageError) as error:
        pytest.fail(f"@pytest.mark.packproof: {error}", pytrace=False)
    cells = [(law, kind) for law in asked.properties or PROPERTIES for kind in dtypes]
    return {f"{law}-{kind}": dataclasses.replace(asked, properties=(law,), dtypes=(kind,)) for law, kind in cells}


class Proof:
    """Judges one property of a kernel at one dtype when it is called; fails with the report, skips with the reason."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self.called = False

    def __call__(self) -> None:
        from packproof.harness import check, events, wording  # noqa: PLC0415
        from packproof.refs.errors import UsageError  # noqa: PLC0415

        self.called = True
        try:
            end = [event for event in check.run_check(self._request) if isinstance(event, events.RunFinished)][-1]
        except UsageError as error:
            pytest.fail(str(error), pytrace=False)
        if end.interrupted:
            raise KeyboardInterrupt
        failed = [wording.failure_text(v) for v in end.verdicts if v.status == "failed"]
        if failed or end.error:
            pytest.fail("\n\n".join(failed) or end.error, pytrace=False)
        if not any(verdict.status == "passed" for verdict in end.verdicts):
            pytest.skip("; ".join(verdict.reason for verdict in end.verdicts))


@pytest.fixture
def proof(request: pytest.FixtureRequest) -> Proof:
    """Call it to judge the kernel that the marker `packproof` names."""
    if not hasattr(request, "param"):
        pytest.fail("`proof` needs a kernel to judge: mark the test with @pytest.mark.packproof(target)", pytrace=False)
    return Proof(request.param)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    result = yield
    if isinstance(given := pyfuncitem.funcargs.get("proof"), Proof) and not given.called:
        pytest.fail("the test ended without calling proof(): nothing was judged", pytrace=False)
    return result
