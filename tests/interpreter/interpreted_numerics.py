"""The repaired interpreter: its numbers are torch's, and its self-test detects every repair that is missing."""

import re

import pytest

from packproof.interpreter import repair
from tests.interpreter import triton_numerics, triton_products, triton_samples

repair.install()
repair.install()  # a second call changes nothing

CASES = triton_numerics.CASES | triton_products.CASES


_UNTIL_3_7 = pytest.mark.skipif(triton_samples.TRITON > (3, 7), reason="triton 3.8 has this repair itself")
_SINCE_3_8 = pytest.mark.skipif(triton_samples.TRITON < (3, 8), reason="triton 3.7 subtracts from zero")
_SINCE_3_9 = pytest.mark.skipif(triton_samples.TRITON < (3, 9), reason="triton 3.8 widens bfloat16 itself")


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
        "running_sums_of_bfloat16_are_rounded_each",
        "an_index_beside_nan_alone",
        "one_bfloat16_is_negated_by_value",
        "a_clamp_makes_nan_its_lower_bound",
        *(["a_chain_of_comparisons"] if triton_samples.TRITON >= (3, 9) else []),
        "a_combine_function_that_is_not_associative_shows",
        "autotuning_takes_the_first_config_and_tries_it",
        "libdevice_by_name",
        "loops_over_runtime_values",
        "products_of_halves_are_summed_in_float32",
        "products_of_float32_have_the_requested_precision",
        "products_of_float64_are_exact",
        "float32_splits_into_two_bfloat16",
        "prefix_sums_run_either_way",
        "decays_sums_and_halves_are_torchs",
        "loops_follow_bounds_read_from_memory",
        "self_test",
    ],
)
def test_numbers_are_torchs(case: str) -> None:
    CASES[case]()


@pytest.mark.parametrize(
    ("case", "kind", "text"),
    [
        (
            "a_combine_function_that_changes_the_type",
            TypeError,
            "the combine function returns fp32 for an operand of bf16",
        ),
        (
            "libdevice_without_a_model",
            NotImplementedError,
            "libdevice.cyl_bessel_i0 is not modelled by packproof: check this kernel on a GPU",
        ),
        (
            "float8_is_refused",
            NotImplementedError,
            "float8 is not modelled by Triton's interpreter: check this kernel on a GPU",
        ),
        (
            "a_block_has_no_truth_value",
            TypeError,
            "a block of shape (4,) has no truth value: use & and | between masks, tl.where for if",
        ),
        ("what_a_kernel_raises_comes_through", AssertionError, "only float64"),
    ],
)
def test_what_cannot_be_interpreted_is_reported(case: str, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as found:
        CASES[case]()
    assert str(found.value) == text


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("binary_op", "bfloat16 arithmetic: x + 0.3 differs from torch by"),
        ("cast_impl", "casts: torch.float64 to torch.bfloat16 differs from torch by"),
        ("create_fma", "bfloat16 arithmetic: tl.fma differs from torch by"),
        ("create_dot", "tl.dot ignores input_precision='tf32'"),
        pytest.param("create_maxnumf", "tl.maximum with a NaN differs from torch by", marks=_UNTIL_3_7),
        pytest.param("create_minnumf", "tl.minimum with a NaN differs from torch by", marks=_UNTIL_3_7),
        pytest.param("create_clampf", "-tl.clamp with a NaN differs from torch by", marks=_UNTIL_3_7),
        pytest.param("unary_op", "bfloat16 arithmetic: -tl.clamp with a NaN differs from torch by", marks=_SINCE_3_8),
        ("sum", "bfloat16 reductions: tl.sum differs from torch by"),
        pytest.param("min_max", "bfloat16 reductions: tl.argmax differs from torch by", marks=_SINCE_3_9),
        pytest.param("cumsum", "bfloat16 reductions: tl.cumsum differs from torch by", marks=_SINCE_3_9),
        pytest.param("cumprod", "bfloat16 reductions: tl.cumprod differs from torch by", marks=_SINCE_3_9),
        ("do_bench", "autotune: RuntimeError:"),
        ("exp", "libdevice: TypeError:"),
    ],
)
def test_the_self_test_detects_a_missing_repair(missing: str, words: str) -> None:
    with pytest.raises(LookupError, match=re.escape(words)):
        CASES[f"self_test_without_{missing}"]()
