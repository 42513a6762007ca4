"""The recorded name of a kernel that was passed as an object: another process finds it, or says why not."""

import contextlib
import functools
import importlib
import json
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import packproof
from packproof.base.errors import UsageError
from packproof.harness.process.naming.address import address, kernel_address
from packproof.harness.process.naming.location import Location
from tests.in_process import imports_of

KERNELS = """
import functools, packproof

def conv(x, weight, *, cu_seqlens):
    return x * 0

def make():
    def inner(x, weight, *, cu_seqlens):
        return x * 0
    return inner

class Kernel:
    def __call__(self, x, weight, *, cu_seqlens):
        return x * 0

made, nameless, instance = make(), lambda x, weight, *, cu_seqlens: x * 0, Kernel()
adapted = packproof.adapters.adapt(conv, op="causal_conv1d")
SCALED = packproof.Op(
    name="scaled",
    reference=lambda x, *, cu_seqlens: 2 * x,
    inputs={"x": "t d"},
    outputs={"y": "t d"},
    sizes=({"d": 4},),
)

def scaled(x, *, cu_seqlens):
    return 3 * x

@packproof.kernel(op=SCALED)
def declared(x, *, cu_seqlens):
    return 3 * x
"""
SCRIPT = """
from kernels_here import *
from packproof.harness.process.naming.address import kernel_address as shown

def own(x): ...

print(shown(own), shown(make()), shown(conv), shown(lambda: 0))
"""
FEW: dict[str, Any] = {"device": "cpu", "dtypes": ["fp32"], "properties": ["reference"], "profile": "quick"}


@pytest.fixture
def kernels(working_folder: Path) -> Iterator[types.ModuleType]:
    """A module of the current folder."""
    (working_folder / "kernels_here.py").write_text(KERNELS)
    with imports_of(working_folder):
        yield importlib.import_module("kernels_here")


def failure_of(kernel: Callable[..., Any], op: Any = "causal_conv1d") -> packproof.Verdict:
    with pytest.raises(packproof.CheckFailed) as caught:
        packproof.check(kernel, op=op, **FEW)
    (verdict,) = caught.value.verdicts
    return verdict


@pytest.mark.parametrize("name", ["conv", "made", "nameless", "instance", "adapted", "Kernel"])
def test_a_name_at_the_top_level_of_a_module_leads_to_the_object(kernels: Any, name: str) -> None:
    found = address(getattr(kernels, name))
    assert found == f"kernels_here:{name}"
    assert Location.parse(found).find() is getattr(kernels, name)


def test_a_file_below_the_current_folder_is_named_by_its_path(kernels: Any, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path.parent):
        assert address(kernels.conv) == f"{tmp_path.name}/kernels_here.py:conv"
    assert address(packproof.refs.rope) == "packproof.refs.rotary:rope"


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (lambda kernels: kernels.make(), "kernels_here:make.<locals>.inner", "was defined inside of make"),
        (lambda kernels: kernels.Kernel(), "kernels_here:Kernel()", "is an object without a name"),
        (lambda kernels: functools.partial(kernels.conv), "kernels_here:partial(conv)", "is an object without a name"),
    ],
)
def test_an_object_without_a_name_has_one_in_reports_that_says_why(
    kernels: Any, make: Callable[[Any], Any], name: str, reason: str
) -> None:
    kernel = make(kernels)
    assert (address(kernel), kernel_address(kernel)) == ("", name)
    with pytest.raises(UsageError, match=f"{reason}, where no other process finds it; put it at the top level"):
        Location.parse(name)


def test_a_script_is_named_by_its_file_and_a_session_by_nothing(kernels: Any, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    session = f"import runpy; runpy.run_path('script.py', run_name='__main__')\n{SCRIPT}"
    done = subprocess.run([sys.executable, "-"], input=session, capture_output=True, text=True, check=True)
    inner = "kernels_here:make.<locals>.inner"
    assert list(map(str.split, done.stdout.splitlines())) == [
        ["script.py:own", inner, "kernels_here:conv", "script.py:<lambda>"],
        ["__main__:own", inner, "kernels_here:conv", "__main__:<lambda>"],
    ]
    with pytest.raises(UsageError, match="was defined in a session or a notebook"):
        Location.parse("__main__:own")


def test_the_replay_of_a_function_finds_it_again(kernels: Any) -> None:
    verdict = failure_of(kernels.conv)
    assert verdict.cell.target == "kernels_here:conv"
    assert verdict.failure is not None
    assert packproof.replay(verdict.failure.replay).status == "failing"


@pytest.mark.parametrize(("kernel", "op"), [("scaled", "SCALED"), ("declared", None)])
def test_so_does_that_of_a_function_with_an_op_of_its_own(kernels: Any, kernel: str, op: str | None) -> None:
    verdict = failure_of(getattr(kernels, kernel), op and kernels.SCALED)
    assert verdict.failure is not None
    assert json.loads(Path(verdict.failure.replay).read_text())["op"] == "kernels_here:SCALED"
    assert packproof.replay(verdict.failure.replay).status == "failing"


@pytest.mark.proof
def test_the_replay_of_a_nested_function_says_why_not_and_takes_the_function(kernels: Any) -> None:
    verdict = failure_of(kernels.make())
    assert verdict.failure is not None
    outcome = packproof.replay(verdict.failure.replay)
    assert outcome.status == "not applicable"
    assert "'kernels_here:make.<locals>.inner' was defined inside of make" in outcome.text
    assert "--target or target=" in outcome.text
    assert packproof.replay(verdict.failure.replay, target=kernels.make()).status == "failing"
    assert packproof.replay(verdict.failure.replay, target="kernels_here:conv").status == "failing"


def test_a_script_that_checks_while_it_is_imported_is_refused(
    kernels: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bare.py").write_text("import packproof\ndef conv(x): ...\npackproof.check(conv, op='causal_conv1d')\n")
    with pytest.raises(UsageError, match='its own import starts a check; put that below if __name__ == "__main__"'):
        packproof.check("bare.py:conv", op="causal_conv1d", **FEW)
