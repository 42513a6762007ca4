"""The bugs of the museum in Triton: detected in this process, as test_museum.py detects one in a process of its own."""

import pytest

from packproof.harness.process.execution.execute import InProcess
from packproof.interpreter import repair
from packproof.proof.museum.detect import detect_with
from packproof.properties.declarations.declaration import describe_kernel
from tests.quality.test_museum import ENTRIES, INTERPRETED, Record, check_detected

repair.install()


@pytest.mark.parametrize("name", INTERPRETED)
def test_a_bug_in_triton_is_detected(name: str, record_property: Record) -> None:
    kernel = ENTRIES[name].load()
    done = detect_with(InProcess(kernel), ENTRIES[name], describe_kernel(kernel), profile="standard")
    check_detected(done, record_property)
