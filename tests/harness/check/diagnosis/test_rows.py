"""The rows of a pack in words, with the tile that they point to."""

import pytest
import torch

from packproof.harness.check.diagnosis.explain import SmallestFailure, explain
from packproof.harness.check.diagnosis.rows import UnwrittenRows, rows_text, unwritten_rows, unwritten_rows_line
from packproof.harness.process.execution.execute import InProcess
from packproof.properties.calling.tensor_key import TensorKey
from packproof.properties.cases.case import Case
from packproof.properties.cases.space import Space
from packproof.properties.declarations.promises import Promises
from packproof.properties.judgement.kernel_under_test import KernelUnderTest
from packproof.properties.laws.invariance import PACKING
from packproof.properties.laws.violation import Violation
from tests.quality.faulty_kernels import RUNNING_SUM, correct, unwritten_row


@pytest.mark.parametrize(
    ("rows", "n_rows", "text"),
    [
        ([61, 62, 63], 66, "rows 61 to 63 of the pack, just before row 64"),
        ([64], 65, "row 64 of the pack, from a multiple of 64 on"),
        ([16, 17], 40, "rows 16 to 17 of the pack, from a multiple of 16 on"),
        ([5, 9], 40, "rows 5 and 9 of the pack"),
        ([0, 2, 4, 6, 8], 10, "rows 0, 2, 4 and 2 more places of the pack"),
        ([0, 1, 2], 3, "all 3 rows of the pack"),
        ([0], 1, "the only row of the pack"),
    ],
)
def test_rows_are_named_with_the_multiple_beside_them(rows: list[int], n_rows: int, text: str) -> None:
    assert rows_text(rows, n_rows) == text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_that_keeps_its_fill_was_never_written(dtype: str) -> None:
    case = Case((4, 7), dtype, (("d", 3),))
    unwritten = UnwrittenRows((10,), 11, "token")
    for kernel, rows in ((unwritten_row, {TensorKey("y"): unwritten}), (correct, {})):
        subject = KernelUnderTest(RUNNING_SUM, InProcess(kernel), Promises())
        assert unwritten_rows(subject, subject.sample(case), Violation(TensorKey("x", "gradient"))) == rows


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (UnwrittenRows((64,), 65, "token"), "row 64 of the pack, from a multiple of 64 on"),
        (UnwrittenRows((17,), 34, "sequence"), "sequence 17"),
        (UnwrittenRows((1, 3, 5, 7, 9), 34, "sequence"), "sequences 1, 3, 5 and 2 more"),
        (UnwrittenRows((2,), 4, "shared"), "row 2"),
    ],
)
def test_unwritten_rows_of_states_and_of_shared_tensors_are_named_too(rows: UnwrittenRows, text: str) -> None:
    """A pack has more sequences than tokens where many are empty."""
    line = unwritten_rows_line(TensorKey("final_states"), rows)
    assert line == f"final_states was never written in {text}: it holds what its memory held before"


def test_a_pack_without_rows_has_no_unwritten_ones() -> None:
    subject = KernelUnderTest(RUNNING_SUM, InProcess(correct), Promises())
    sample = subject.sample(Case((0,), "float32", (("d", 3),)))
    assert unwritten_rows(subject, sample, Violation(TensorKey("weight", "gradient"))) == {}


def test_a_computed_nan_was_written() -> None:
    def nan(x: torch.Tensor, weight: torch.Tensor, *, cu_seqlens: torch.Tensor) -> torch.Tensor:
        return correct(x, weight, cu_seqlens=cu_seqlens) * float("nan")

    subject = KernelUnderTest(RUNNING_SUM, InProcess(nan), Promises())
    sample = subject.sample(Case((4, 7), "float32", (("d", 3),)))
    assert unwritten_rows(subject, sample, Violation(TensorKey("y"))) == {}


@pytest.mark.parametrize(
    ("lengths", "line"),
    [
        ((1, 10), "y was never written in row 10 of the pack"),
        ((1, 3), "with sequence 1 alone, y was never written in row 2 of the pack"),
    ],
)
def test_the_run_with_an_unwritten_row_is_named(lengths: tuple[int, int], line: str) -> None:
    """Only the pack of both sequences has 11 rows, and only that of the second one alone has 3."""
    subject = KernelUnderTest(RUNNING_SUM, InProcess(unwritten_row), Promises())
    case, space = Case(lengths, "float32", (("d", 3),)), Space(RUNNING_SUM, "float32", Promises())
    violation = Violation(TensorKey("y"), 1, lengths[1] - 1, (0,), got=0.5, wanted=float("nan"), other="alone")
    explanation = explain(SmallestFailure(subject, PACKING, case, violation, space, case), [space], {})
    assert explanation.cause == "unwritten values"
    assert explanation.lines == (f"{line}: it holds what its memory held before",)
