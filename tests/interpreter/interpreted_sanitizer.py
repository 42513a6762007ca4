"""The sanitizer: every fault is detected and reported in plain words, and correct kernels pass without a report."""

import pytest

from packproof.base.errors import KernelFault
from packproof.interpreter import repair
from tests.interpreter import triton_races, triton_samples

repair.install()

CASES = triton_samples.CASES | triton_races.CASES
BEYOND = "reads 1 element past the end of x, float32 (8,) (1 of 8 active lanes are out of bounds)"
NO_ORDER = "programs of one launch have no order"

FAULTS = {
    "read_past_the_end": "_shift_kernel: program (2) reads 1 element past the end of x, float32 (37,) "
    "(2 of 5 active lanes are out of bounds)",
    "read_before_the_start": "_shift_kernel: program (0) reads 3 elements before the start of x, float32 (37,) "
    "(3 of 16 active lanes are out of bounds)",
    "write_past_the_end": "_unmasked_store_kernel: program (1) writes 1 element past the end of y, float32 (18,) "
    "(14 of 16 active lanes are out of bounds)",
    "read_beside_a_window": "_rows_kernel: program (0) reads between the elements of x, float32 (6, 5) "
    "with strides (10, 1) (12 of 42 active lanes are out of bounds)",
    "access_without_elements": "_shift_kernel: program (0) reads memory although no tensor with elements was passed "
    "(1 of 1 active lanes are out of bounds)",
    "grid_too_wide": "_shift_kernel: grid (1, 65536, 1) has more than 65535 programs on axis 1, no GPU can launch it",
    "read_unwritten_float64": "_copy_kernel: program (0) reads x[5], which was never written",
    "read_unwritten_float32": "_copy_kernel: program (0) reads x[5], which was never written",
    "read_unwritten_bfloat16": "_copy_kernel: program (0) reads x[5], which was never written",
    "read_unwritten_float16": "_copy_kernel: program (0) reads x[5], which was never written",
    "read_unwritten_int64": "_copy_kernel: program (0) reads x[5], which was never written",
    "read_unwritten_int32": "_copy_kernel: program (0) reads x[5], which was never written",
    "accumulate_in_unwritten": "_add_in_place_kernel: program (0) reads total[0], which was never written",
    "write_to_an_input": "_add_in_place_kernel: program (0) writes total[0], an input of the op",
    "write_to_a_part_of_an_input": "_add_in_place_kernel: program (0) writes total[0, 1], an input of the op",
    "two_lanes_one_element": "_half_kernel: program (0) stores different values from two lanes of one store to y[0]",
    "programs_overlap": f"_overlap_kernel: program (1) overwrites y[3], which program (0) wrote: {NO_ORDER}",
    "programs_overlap_through_two_arguments": "_shifted_copy_kernel: program (1) reads x[8], which program (0) wrote: "
    f"{NO_ORDER}",
    "programs_overlap_in_a_part_of_an_element": "_bits_kernel: program (1) overwrites x[0], which program (0) wrote: "
    f"{NO_ORDER}",
    "programs_read_what_others_write": "_look_back_kernel: program (1) reads x[0], which program (0) wrote: "
    f"{NO_ORDER}",
    "programs_write_what_others_read": "_look_back_kernel: program (1) writes x[1], which program (2) read before: "
    f"{NO_ORDER}",
    "programs_overlap_in_their_second_stores": "_next_element_kernel: program (1) overwrites y[1], which program (0) "
    f"wrote: {NO_ORDER}",
    "programs_write_what_others_have_read": "_pass_on_kernel: program (1) reads x[1], which program (0) wrote: "
    f"{NO_ORDER}",
    "one_program_writes_what_all_read": f"_first_writes_kernel: program (1) reads x[0], which program (0) wrote: "
    f"{NO_ORDER}",
    "lost_update": f"_shared_counter_kernel: program (1) reads x[0], which program (0) wrote: {NO_ORDER}",
    "atomic_sum_from_unwritten": "_atomic_sum_kernel: program (0) reads total[0], which was never written",
    "atomic_past_the_end": "_beyond_atomic_kernel: program (0) changes 1 element past the end of total, float32 (1,) "
    "(1 of 2 active lanes are out of bounds)",
    "atomic_on_an_input": "_atomic_sum_kernel: program (0) writes total[0], an input of the op",
    "plain_read_of_an_atomic": "_atomic_then_read_kernel: program (1) reads total[0], which program (0) changed "
    f"atomically: {NO_ORDER}",
    "plain_start_of_an_atomic": "_own_start_kernel: program (1) changes atomically total[0], which program (0) wrote: "
    f"{NO_ORDER}",
    "lock_without_order": f"_locked_kernel: program (1) reads total[0], which program (0) wrote: {NO_ORDER}",
    "last_program_sums_too_early": "_late_write_kernel: program (3) reads partial[0], which program (0) wrote: "
    f"{NO_ORDER}",
    "fault_in_a_device_function": f"_device_function_kernel: program (0) {BEYOND}",
    "fault_in_backward": f"_device_function_kernel: program (0) {BEYOND}",
    "swallowed_fault": f"_device_function_kernel: program (0) {BEYOND}",
}

CORRECT = [
    "copy_with_masks",
    "read_a_window",
    "read_an_expanded_row",
    "tensors_without_elements",
    *(["block_pointer_with_padding"] if triton_samples.HAS_BLOCK_POINTERS else []),
    "scratch_between_launches",
    "masked_lanes_without_other",
    "masked_scalar_with_other",
    "write_between_the_columns_of_an_input",
    "two_lanes_one_element_same_value",
    "one_tensor_as_two_arguments",
    "lost_update_of_one_program",
    "programs_write_the_same_value",
    "atomic_sum",
    "lock",
    "last_program_sums",
    "program_order",
    "nothing_watches_afterwards",
]


@pytest.mark.parametrize("case", FAULTS)
def test_faults_are_reported(case: str) -> None:
    with pytest.raises(KernelFault) as found:
        CASES[case]()
    assert str(found.value) == FAULTS[case]


@pytest.mark.parametrize("case", CORRECT)
def test_correct_kernels_pass(case: str) -> None:
    CASES[case]()


def test_no_case_is_forgotten() -> None:
    assert set(CASES) == {*FAULTS, *CORRECT}
