"""selective_scan.cu: its logic, on a CPU."""

import shutil
from collections.abc import Callable

import pytest

from tests.kernels.scripts import cases_of

SCRIPT = "scan_cuda_cases.py"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("case", [*cases_of("scan_cases.py"), *cases_of(SCRIPT)])
def test_on_the_cpu(case: str, interpreted: Callable[[str, str], str]) -> None:
    assert interpreted(SCRIPT, case) == "ok"
