"""Failures with one cause are one fault."""

from packproof.harness.report.causes import Faults
from packproof.harness.report.events import Cell, Failure, Verdict
from packproof.harness.report.wording import failure_texts


def failing(
    name: str, dtype: str, cause: str, *, tensor: str = "y", lengths: tuple[int, ...] = (64, 1), note: str = ""
) -> Verdict:
    failure = Failure(lengths, tensor, ("fp32, d=3, seed 0", "got 1"), 1, 3, note=note, cause=cause)
    return Verdict(Cell("sum", "m:f", name, dtype, "cpu"), "eager", "failed", 1, 0.1, failure=failure)


def test_wrong_values_in_several_properties_and_dtypes_are_one_fault() -> None:
    verdicts = [
        failing("isolation", "float32", "values", tensor="gradient of x", note="after the others were redrawn"),
        failing("packing", "float32", "values"),
        failing("packing", "bfloat16", "values"),
    ]
    [text] = failure_texts(verdicts)
    assert "FAILED  packing (y)   fp32" in text
    assert "the same in 3 cells: isolation fp32; packing fp32, bf16" in text
    assert "  gradient of x at lengths [64, 1]: isolation fp32" in text


def test_two_causes_are_two_faults() -> None:
    verdicts = [failing("packing", "float32", "values"), failing("reference", "float32", "gradients", lengths=(1,))]
    assert [len(fault.verdicts) for fault in Faults(verdicts)] == [1, 1]
    assert len(failure_texts(verdicts)) == 2


def test_failures_of_an_unknown_cause_stand_for_themselves() -> None:
    verdicts = [failing("packing", "float32", ""), failing("packing", "bfloat16", "")]
    assert len(list(Faults(verdicts))) == 2
