"""Failures with one cause are one fault."""

import json
from dataclasses import replace
from pathlib import Path

from packproof.harness.report.causes import Faults
from packproof.harness.report.events import Cell, CellFinished, Failure, RunFinished, RunStarted, Verdict
from packproof.harness.report.formats.github import summary
from packproof.harness.report.formats.json_file import JsonReport
from packproof.harness.report.formats.junit import JunitReport
from packproof.harness.report.maps import Evidence, Layout
from packproof.harness.report.wording.results import failure_texts


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


def test_the_failure_with_all_about_its_cause_tells_most() -> None:
    explained = failing("packing", "float32", "values")
    assert explained.failure
    explained = replace(explained, failure=replace(explained.failure, evidence=Evidence(Layout((64, 1)))))
    [fault] = Faults([failing("reference", "float32", "values", lengths=(1,)), explained])
    assert fault.telling is explained


def test_two_causes_are_two_faults() -> None:
    verdicts = [failing("packing", "float32", "values"), failing("reference", "float32", "gradients", lengths=(1,))]
    assert [len(fault.verdicts) for fault in Faults(verdicts)] == [1, 1]
    assert len(failure_texts(verdicts)) == 2


def test_failures_of_an_unknown_cause_stand_for_themselves() -> None:
    verdicts = [failing("packing", "float32", ""), failing("packing", "bfloat16", "")]
    assert len(list(Faults(verdicts))) == 2


def test_a_failure_that_stands_for_itself_has_no_cause(tmp_path: Path) -> None:
    verdict = failing("packing", "float32", "")
    json_file, junit_file = tmp_path / "check.json", tmp_path / "junit.xml"
    for report in (JsonReport(str(json_file)), JunitReport(str(junit_file))):
        report(RunStarted((verdict.cell,), "quick", 0))
        report(CellFinished(verdict))
        report(RunFinished((verdict,), 1.0))
    assert "cause" not in json.loads(json_file.read_text())["results"][0]
    assert "type=" not in junit_file.read_text()


def test_each_cell_keeps_its_result_and_refers_to_the_one_that_tells_more(tmp_path: Path) -> None:
    verdicts = (failing("packing", "bfloat16", "values", lengths=(70, 1)), failing("packing", "float32", "values"))
    json_file, junit_file = tmp_path / "check.json", tmp_path / "junit.xml"
    for report in (JsonReport(str(json_file)), JunitReport(str(junit_file))):
        report(RunStarted(tuple(v.cell for v in verdicts), "quick", 0))
        for verdict in verdicts:
            report(CellFinished(verdict))
        report(RunFinished(verdicts, 1.0))
    results = json.loads(json_file.read_text())["results"]
    assert [result["cause"] for result in results] == ["values", "values"]
    assert [result.get("same_fault_as") for result in results] == [{"property": "packing", "dtype": "float32"}, None]
    junit = junit_file.read_text()
    assert junit.count("<failure") == junit.count('type="values"') == 2
    assert junit.count("the same fault as packing-fp32") == 1
    assert "\n".join(summary(results, 1)).count("<pre>") == 1
