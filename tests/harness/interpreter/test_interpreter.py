"""The repaired interpreter: its numbers are torch's, and its self-test sees every repair that is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from packproof.refs.errors import PackproofError

pytest.importorskip("triton")

ENVIRONMENT = os.environ | {
    "TRITON_INTERPRET": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """Outcome of every case of triton_numerics.py and triton_products.py by name."""
    script = str(Path(__file__).parents[1] / "interpreted.py")
    command = [sys.executable, script, "triton_numerics", "triton_products"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "case",
    [
        "every_bfloat16_survives",
        "float32_is_rounded_as_by_torch",
        "bfloat16_expressions_are_torchs_op_by_op",
        "fma_rounds_once",
        "scans_along_any_axis",
        "reductions_along_any_axis",
        "scan_of_bfloat16",
        "a_combine_function_that_is_not_associative_shows",
        "autotuning_takes_the_first_config_and_tries_it",
        "libdevice_by_name",
        "loops_over_runtime_values",
        "products_of_halves_are_summed_in_float32",
        "products_of_float32_have_the_precision_asked_for",
        "products_of_float64_are_exact",
        "float32_splits_into_two_bfloat16",
        "prefix_sums_run_either_way",
        "decays_sums_and_halves_are_torchs",
        "loops_follow_bounds_read_from_memory",
        "self_test",
    ],
)
def test_numbers_are_right(outcomes: dict[str, str], case: str) -> None:
    assert outcomes[case] == "ok"


@pytest.mark.parametrize(
    ("case", "error"),
    [
        (
            "a_combine_function_that_changes_the_type",
            "TypeError: the combine function returns fp32 for an operand of bf16",
        ),
        (
            "libdevice_without_a_model",
            "NotImplementedError: libdevice.cyl_bessel_i0 is not modelled by packproof: check this kernel on a GPU",
        ),
        (
            "float8_is_refused",
            "NotImplementedError: float8 is not modelled by Triton's interpreter: check this kernel on a GPU",
        ),
        (
            "a_block_has_no_truth_value",
            "TypeError: a block of shape (4,) has no truth value: use & and | between masks, tl.where for if",
        ),
        ("what_a_kernel_raises_comes_through", "AssertionError: only float64"),
    ],
)
def test_what_cannot_be_interpreted_says_so(outcomes: dict[str, str], case: str, error: str) -> None:
    assert outcomes[case] == error


@pytest.mark.parametrize(
    ("repair", "words"),
    [
        ("binary_op", "bfloat16 arithmetic: x + 0.3 differs from torch by"),
        ("cast_impl", "casts: torch.float64 to torch.bfloat16 differs from torch by"),
        ("create_fma", "bfloat16 arithmetic: tl.fma differs from torch by"),
        ("create_dot", "tl.dot ignores input_precision='tf32'"),
        ("create_maxnumf", "tl.maximum with a NaN differs from torch by"),
        ("create_minnumf", "tl.minimum with a NaN differs from torch by"),
        ("sum", "bfloat16 reductions: tl.sum differs from torch by"),
        ("do_bench", "autotune: RuntimeError:"),
        ("exp", "libdevice: TypeError:"),
    ],
)
def test_the_self_test_sees_a_missing_repair(outcomes: dict[str, str], repair: str, words: str) -> None:
    assert words in outcomes[f"self_test_without_{repair}"]


def test_operators_make_the_same_of_every_pair_of_operands_by_the_short_way_and_the_long() -> None:
    command = [sys.executable, str(Path(__file__).parents[1] / "triton_operators.py")]
    short, long = (
        json.loads(
            subprocess.run([*command, *way], env=ENVIRONMENT, capture_output=True, timeout=120, check=True).stdout
        )
        for way in ([], ["long"])
    )
    assert len(short) > 50_000
    assert sum(" " in outcome for outcome in short.values()) > len(short) / 2
    assert {what: (short[what], long[what]) for what in long if short[what] != long[what]} == {}


def test_it_has_to_be_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from packproof.harness.interpreter import repair  # noqa: PLC0415  (needs triton)

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(PackproofError, match="set TRITON_INTERPRET=1 before Triton kernels are imported"):
        repair.install()


@pytest.mark.parametrize(
    ("sabotage", "words"),
    [
        (
            "del shipped.InterpreterBuilder.create_dot",
            "packproof does not know triton {}: InterpreterBuilder has no create_dot",
        ),
        ("interpreter.interpreter_floats.repair = lambda: None", "does not fit triton {} with numpy"),
    ],
)
def test_a_triton_that_does_not_fit_is_refused(sabotage: str, words: str) -> None:
    import triton  # noqa: PLC0415

    script = f"""
from triton.runtime import interpreter as shipped
from packproof.harness.interpreter import repair
from packproof.refs.errors import PackproofError
{sabotage}
try:
    repair.install()
except PackproofError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert words.format(triton.__version__) in done.stdout, done.stderr
    assert "Use triton 3.5 to 3.8.0, or check on a GPU." in done.stdout
