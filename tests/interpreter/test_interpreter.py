"""The repair of the interpreter: when it is refused, and the operators that it speeds up."""

import importlib.metadata
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packproof.base.errors import PackproofError
from tests.in_process import environment

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {
    "TRITON_INTERPRET": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


def printed(module: str, *arguments: str) -> Any:
    """What a module prints, as JSON, in a process whose interpreter is not repaired yet."""
    command = [sys.executable, "-m", f"tests.interpreter.{module}", *arguments]
    return json.loads(
        subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, timeout=240, check=True).stdout
    )


@pytest.mark.parametrize(("pairs", "least"), [("sample", 10_000), pytest.param("all", 50_000, marks=pytest.mark.proof)])
def test_operators_give_the_same_results_through_numpy_and_through_triton(pairs: str, least: int) -> None:
    through_numpy, through_triton = printed("triton_operators", pairs)
    assert len(through_numpy) > least
    assert sum(" " in outcome for outcome in through_numpy.values()) > len(through_numpy) / 2
    assert through_numpy.keys() == through_triton.keys()
    assert {x: (y, through_triton[x]) for x, y in through_numpy.items() if y != through_triton[x]} == {}


def _parameters(a, b, c=3, d=4):
    pass


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1, 2), {}),
        ((1, 2, 5), {"d": 6}),
        ((), {"d": 6, "b": 2, "a": 1}),
        ((1,), {}),
        ((1, 2), {"b": 2}),
        ((1, 2), {"e": 5}),
        ((1, 2, 3, 4, 5), {}),
    ],
)
def test_arguments_are_bound_as_inspect_binds_them(args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    from packproof.interpreter import arguments  # noqa: PLC0415  (needs triton)

    def outcome(bind: Callable[..., dict[str, int]]) -> object:
        try:
            return list(bind(_parameters, *args, **kwargs).items())
        except TypeError as error:
            return str(error)

    assert outcome(arguments.call_arguments) == outcome(inspect.getcallargs)


def test_it_has_to_be_switched_on() -> None:
    from packproof.interpreter import repair  # noqa: PLC0415  (needs triton)

    switched_off = environment(TRITON_INTERPRET=None)
    with switched_off, pytest.raises(PackproofError, match="set TRITON_INTERPRET=1 before Triton kernels are imported"):
        repair.install()


@pytest.fixture(scope="module")
def answers() -> Any:
    return printed("misfits")


def test_a_triton_that_does_not_fit_is_refused(answers: Any) -> None:
    version = importlib.metadata.version("triton")
    unknown, unlike = answers["installed"].values()
    assert f"packproof does not know triton {version}: InterpreterBuilder has no create_dot" in unknown
    assert f"does not fit triton {version} with numpy" in unlike
    for refusal in (unknown, unlike):
        assert "Use triton 3.5 to 3.9, or check on a GPU." in refusal


@pytest.mark.proof
def test_one_without_block_pointers_fits() -> None:
    """Triton 3.9 has none."""
    code = (
        "from triton.runtime.interpreter import InterpreterBuilder as builder\n"
        "for name in [name for name in vars(builder) if 'tensor_pointer' in name]:\n    delattr(builder, name)\n"
        "from packproof.interpreter import repair_if_used\nrepair_if_used()\nprint('repaired')"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.stdout == "repaired\n", done.stderr


def test_an_import_of_a_kernel_refuses_it(answers: Any) -> None:
    [refusal] = answers["kernel_imported"].values()
    assert refusal.startswith("packproof does not know triton ")
    assert "InterpreterBuilder has no create_dot" in refusal


def test_beside_a_triton_that_does_not_fit_other_kernels_are_called(answers: Any) -> None:
    assert len(answers["other_kernel_called"]) == 4
    for sabotage, (misfit, refusal) in answers["other_kernel_called"].items():
        assert "or check on a GPU." in misfit, sabotage
        assert refusal == misfit, sabotage
