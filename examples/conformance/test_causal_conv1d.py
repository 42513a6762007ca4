"""causal-conv1d: its packed kernels as its own CI can check them, a test for each kernel, property and dtype.

    pytest test_causal_conv1d.py -rx --packproof-profile quick

Without a GPU each test is skipped with the reason.
What is known to be wrong is data, in `causal_conv1d.toml`, with the report of each. Such a test is an xfail.
It fails once it holds: then its entry is removed.
"""

from pathlib import Path

import pytest

pytest.importorskip("packproof", reason="packproof is not installed: see its docs/ci.md")
pytest.importorskip("causal_conv1d", reason="causal-conv1d is not installed")
KNOWN = str(Path(__file__).with_name("causal_conv1d.toml"))
DTYPES = ["fp32", "bf16"]


@pytest.mark.gpu
@pytest.mark.packproof("causal_conv1d:causal_conv1d", expected_failures=KNOWN, dtypes=DTYPES)
def test_causal_conv1d(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("causal_conv1d:causal_conv1d_update", expected_failures=KNOWN, dtypes=DTYPES)
def test_causal_conv1d_update(proof):
    proof()
