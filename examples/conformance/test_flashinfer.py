"""FlashInfer: its packed kernels as its own CI can check them, a test for each kernel, property and dtype.

    pytest test_flashinfer.py -rx --packproof-profile quick

Without a GPU each test is skipped with the reason.
What is known to be wrong is data, in `flashinfer.toml`, with the report of each. Such a test is an xfail.
It fails once it holds: then its entry is removed.
"""

from pathlib import Path

import pytest

pytest.importorskip("packproof", reason="packproof is not installed: see its docs/ci.md")
pytest.importorskip("flashinfer", reason="flashinfer-python is not installed")
KNOWN = str(Path(__file__).with_name("flashinfer.toml"))
DTYPES = ["fp32", "bf16"]


@pytest.mark.gpu
@pytest.mark.packproof("flashinfer:gated_delta_rule", expected_failures=KNOWN, dtypes=DTYPES)
def test_gated_delta_rule(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("flashinfer:attention_decode", expected_failures=KNOWN, dtypes=DTYPES)
def test_attention_decode(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("flashinfer:attention_prefill", expected_failures=KNOWN, dtypes=DTYPES)
def test_attention_prefill(proof):
    proof()
