"""packproof's own kernels as a suite for pytest, one test for each property and dtype, over all GPUs of a host.

    pytest examples/gpu -n auto --packproof-device cuda --junitxml=kernels.xml

Write your own in the same way: a marker that names the kernel, and a test that calls `proof`.
"""

import pytest

import packproof
from packproof.kernels.attention import PROMISES as ATTENTION
from packproof.kernels.causal_conv1d import PROMISES as CAUSAL_CONV1D
from packproof.kernels.grouped_mm import PROMISES as GROUPED_MM
from packproof.kernels.hadamard import PROMISES as HADAMARD
from packproof.kernels.linear_attention import PROMISES as LINEAR
from packproof.kernels.quantize_fp8 import PROMISES as ROUND_FP8
from packproof.kernels.rope import PROMISES as ROPE
from packproof.kernels.rope_hadamard import PROMISES as ROPE_HADAMARD
from packproof.kernels.selective_scan import PROMISES as SELECTIVE_SCAN
from packproof.kernels.ssd import PROMISES as SSD

pytestmark = pytest.mark.gpu
SIXTEEN_BITS = ["bf16", "fp16"]


@pytest.mark.packproof("packproof.kernels.ssd:ssd", op="ssd", promises=packproof.Promises(**SSD), dtypes=SIXTEEN_BITS)
def test_ssd(proof):
    proof()


@pytest.mark.packproof(
    "packproof.kernels.selective_scan:selective_scan",
    op="selective_scan",
    promises=packproof.Promises(**SELECTIVE_SCAN),
)
def test_selective_scan(proof):
    proof()


@pytest.mark.packproof(
    "packproof.kernels.causal_conv1d:causal_conv1d",
    op="causal_conv1d",
    promises=packproof.Promises(**CAUSAL_CONV1D),
)
def test_causal_conv1d(proof):
    proof()


@pytest.mark.packproof(
    "packproof.kernels.attention:attention", op="attention", promises=packproof.Promises(**ATTENTION)
)
def test_attention(proof):
    proof()


@pytest.mark.packproof("packproof.kernels.rope:rope", op="rope", promises=packproof.Promises(**ROPE))
def test_rope(proof):
    proof()


@pytest.mark.packproof("packproof.kernels.rope:rope_qk", op="rope_qk", promises=packproof.Promises(**ROPE))
def test_rope_qk(proof):
    proof()


@pytest.mark.packproof(
    "packproof.kernels.grouped_mm:grouped_mm", op="grouped_mm", promises=packproof.Promises(**GROUPED_MM)
)
def test_grouped_mm(proof):
    proof()


@pytest.mark.packproof("packproof.kernels.hadamard:hadamard", op="hadamard", promises=packproof.Promises(**HADAMARD))
def test_hadamard(proof):
    proof()


@pytest.mark.packproof(
    "packproof.kernels.rope_hadamard:rope_hadamard",
    op="rope_hadamard",
    promises=packproof.Promises(**ROPE_HADAMARD),
)
def test_rope_hadamard(proof):
    proof()


@pytest.mark.packproof(
    "packproof.kernels.quantize_fp8:round_fp8", op="round_fp8", promises=packproof.Promises(**ROUND_FP8)
)
def test_round_fp8(proof):
    proof()


LINEAR_FAMILY = "packproof.kernels.linear_attention"


@pytest.mark.packproof(f"{LINEAR_FAMILY}:simple_gla", op="simple_gla", promises=packproof.Promises(**LINEAR))
def test_simple_gla(proof):
    proof()


@pytest.mark.packproof(f"{LINEAR_FAMILY}:retention", op="retention", promises=packproof.Promises(**LINEAR))
def test_retention(proof):
    proof()


@pytest.mark.packproof(
    f"{LINEAR_FAMILY}:linear_attention", op="linear_attention", promises=packproof.Promises(**LINEAR)
)
def test_linear_attention(proof):
    proof()


@pytest.mark.slow
@pytest.mark.packproof("packproof.kernels.ssd:ssd", op="ssd", promises=packproof.Promises(**SSD), dtypes=["fp32"])
def test_ssd_in_fp32(proof):
    proof()
