"""mamba-ssm: its packed kernels as its own CI can check them, a test for each kernel, property and dtype.

    pytest test_mamba_ssm.py -rx --packproof-profile quick

Without a GPU each test is skipped with the reason.
What is known to be wrong is data, in `mamba_ssm.toml`, with the report of each. Such a test is an xfail.
It fails once it holds: then its entry is removed.
"""

from pathlib import Path

import pytest

pytest.importorskip("packproof", reason="packproof is not installed: see its docs/ci.md")
pytest.importorskip("mamba_ssm", reason="mamba-ssm is not installed")
KNOWN = str(Path(__file__).with_name("mamba_ssm.toml"))
DTYPES = ["fp32", "bf16"]


@pytest.mark.gpu
@pytest.mark.packproof("mamba_ssm:ssd", expected_failures=KNOWN, dtypes=DTYPES)
def test_ssd(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("mamba_ssm:selective_scan", expected_failures=KNOWN, dtypes=DTYPES)
def test_selective_scan(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("mamba_ssm:ssd_update", expected_failures=KNOWN, dtypes=DTYPES)
def test_ssd_update(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("mamba_ssm:selective_scan_update", expected_failures=KNOWN, dtypes=DTYPES)
def test_selective_scan_update(proof):
    proof()
