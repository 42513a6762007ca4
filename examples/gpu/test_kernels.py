"""packproof's own kernels as a suite for pytest, one test for each property and dtype, over all GPUs of a host.

    pytest examples/gpu -n auto --packproof-device cuda --junitxml=kernels.xml

Yours looks the same: a marker that names the kernel, and a test that calls `proof`.
"""

import pytest

import packproof
from packproof.kernels import convolution, duality, rotary, scan

pytestmark = pytest.mark.gpu
SIXTEEN_BITS = ["bfloat16", "float16"]


@pytest.mark.packproof(
    "packproof.kernels.duality:ssd", op="ssd", promises=packproof.Promises(**duality.PROMISES), dtypes=SIXTEEN_BITS
)
def test_ssd(proof):
    proof()


@pytest.mark.packproof(
    "packproof.kernels.scan:selective_scan", op="selective_scan", promises=packproof.Promises(**scan.PROMISES)
)
def test_selective_scan(proof):
    proof()


@pytest.mark.packproof(
    "packproof.kernels.convolution:causal_conv1d",
    op="causal_conv1d",
    promises=packproof.Promises(**convolution.PROMISES),
)
def test_causal_conv1d(proof):
    proof()


@pytest.mark.packproof("packproof.kernels.rotary:rope", op="rope", promises=packproof.Promises(**rotary.PROMISES))
def test_rope(proof):
    proof()


@pytest.mark.packproof("packproof.kernels.rotary:rope_qk", op="rope_qk", promises=packproof.Promises(**rotary.PROMISES))
def test_rope_qk(proof):
    proof()


@pytest.mark.slow
@pytest.mark.packproof(
    "packproof.kernels.duality:ssd", op="ssd", promises=packproof.Promises(**duality.PROMISES), dtypes=["float32"]
)
def test_ssd_in_fp32(proof):
    proof()
