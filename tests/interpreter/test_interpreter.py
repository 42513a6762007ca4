"""The repair of the interpreter: when it is refused, and the operators that it speeds up."""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from packproof.base.errors import PackproofError
from tests.in_process import environment

pytest.importorskip("triton")

ENVIRONMENT = os.environ | {
    "TRITON_INTERPRET": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


def test_operators_give_the_same_results_through_numpy_and_through_triton() -> None:
    command = [sys.executable, str(Path(__file__).parents[0] / "triton_operators.py")]
    short, long = (
        json.loads(
            subprocess.run([*command, *way], env=ENVIRONMENT, capture_output=True, timeout=120, check=True).stdout
        )
        for way in ([], ["long"])
    )
    assert len(short) > 50_000
    assert sum(" " in outcome for outcome in short.values()) > len(short) / 2
    assert {what: (short[what], long[what]) for what in long if short[what] != long[what]} == {}


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


@pytest.mark.parametrize(
    ("sabotage", "words"),
    [
        (
            "del shipped.InterpreterBuilder.create_dot",
            "packproof does not know triton {}: InterpreterBuilder has no create_dot",
        ),
        ("repair.floats.repair = lambda: None", "does not fit triton {} with numpy"),
    ],
)
def test_a_triton_that_does_not_fit_is_refused(sabotage: str, words: str) -> None:
    import triton  # noqa: PLC0415

    script = f"""
from triton.runtime import interpreter as shipped
from packproof.interpreter import repair
from packproof.base.errors import PackproofError
{sabotage}
try:
    repair.install()
except PackproofError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert words.format(triton.__version__) in done.stdout, done.stderr
    assert "Use triton 3.5 to 3.9, or check on a GPU." in done.stdout


@pytest.mark.parametrize(
    "sabotage",
    [
        "del shipped.InterpreterBuilder.create_dot",
        "del shipped.GridExecutor",
        "repair.floats.repair = lambda: None",
        "sys.modules['triton.runtime.autotuner'] = None; del sys.modules[repair.__name__]",
    ],
)
def test_beside_a_triton_that_does_not_fit_other_kernels_are_called(sabotage: str) -> None:
    script = f"""
import sys, torch
from triton.runtime import interpreter as shipped
from packproof.interpreter import in_use, repair
from tests.interpreter.triton_numerics import _cast_kernel
{sabotage}
in_use.repair_or_refuse()
print(in_use.misfit())
try:
    _cast_kernel[(1,)](torch.ones(4), torch.ones(4), B=4)
except in_use.UnfitInterpreterError as error:
    print("refused:", str(error) == in_use.misfit())
"""
    done = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert "or check on a GPU." in done.stdout, done.stderr
    assert done.stdout.endswith("refused: True\n"), done.stderr
