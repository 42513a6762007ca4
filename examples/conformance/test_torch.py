"""PyTorch: its packed kernels as its own CI can check them, a test for each kernel, property and dtype.

    pytest test_torch.py -rx --packproof-profile quick

On a CPU what runs there is checked; the rest is skipped with the reason.
What is known to be wrong is data, in `torch.toml`, with the report of each. Such a test is an xfail.
It fails once it holds: then its entry is removed.
"""

from pathlib import Path

import pytest

pytest.importorskip("packproof", reason="packproof is not installed: see its docs/ci.md")
pytest.importorskip("torch", reason="torch is not installed")
KNOWN = str(Path(__file__).with_name("torch.toml"))
DTYPES = ["fp32", "bf16"]


@pytest.mark.packproof("torch:jagged_sdpa", expected_failures=KNOWN, dtypes=DTYPES)
def test_jagged_sdpa(proof):
    proof()


@pytest.mark.packproof("torch:grouped_mm", expected_failures=KNOWN, dtypes=DTYPES)
def test_grouped_mm(proof):
    proof()


@pytest.mark.packproof("torch:compiled_rope", expected_failures=KNOWN, dtypes=DTYPES)
def test_compiled_rope(proof):
    proof()


@pytest.mark.packproof("torch:compiled_conv1d", expected_failures=KNOWN, dtypes=DTYPES)
def test_compiled_conv1d(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("torch:varlen_attn", expected_failures=KNOWN, dtypes=DTYPES)
def test_varlen_attn(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("torch:flex_attention", expected_failures=KNOWN, dtypes=DTYPES)
def test_flex_attention(proof):
    proof()
