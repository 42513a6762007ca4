"""flash-linear-attention: its packed kernels as its own CI can check them, a test for each kernel, property and dtype.

    pytest test_fla.py -rx --packproof-profile quick

On a CPU what runs there is checked, in packproof's Triton interpreter; the rest is skipped with the reason.
What is known to be wrong is data, in `fla.toml`, with the report of each. Such a test is an xfail.
It fails once it holds: then its entry is removed.
"""

from pathlib import Path

import pytest

pytest.importorskip("packproof", reason="packproof is not installed: see its docs/ci.md")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")
KNOWN = str(Path(__file__).with_name("fla.toml"))
DTYPES = ["fp32", "bf16"]


@pytest.mark.packproof("fla:causal_conv1d", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_causal_conv1d(proof):
    proof()


@pytest.mark.packproof("fla:rope", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_rope(proof):
    proof()


@pytest.mark.packproof("fla:rope_qk", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_rope_qk(proof):
    proof()


@pytest.mark.packproof("fla:linear_attention_recurrent", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_linear_attention_recurrent(proof):
    proof()


@pytest.mark.packproof("fla:simple_gla_recurrent", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_simple_gla_recurrent(proof):
    proof()


@pytest.mark.packproof("fla:retention_recurrent", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_retention_recurrent(proof):
    proof()


@pytest.mark.packproof("fla:delta_rule_recurrent", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_delta_rule_recurrent(proof):
    proof()


@pytest.mark.packproof("fla:gated_delta_rule_recurrent", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_gated_delta_rule_recurrent(proof):
    proof()


@pytest.mark.packproof("fla:kda_recurrent", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_kda_recurrent(proof):
    proof()


@pytest.mark.packproof("fla:kda_update", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_kda_update(proof):
    proof()


@pytest.mark.packproof("fla:kda_verify", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_kda_verify(proof):
    proof()


@pytest.mark.packproof("fla:cross_entropy", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_cross_entropy(proof):
    proof()


@pytest.mark.packproof("fla:token_logprobs", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_token_logprobs(proof):
    proof()


@pytest.mark.packproof("fla:linear_cross_entropy", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_linear_cross_entropy(proof):
    proof()


@pytest.mark.packproof("fla:kl_divergence", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_kl_divergence(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("fla:ssd", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_ssd(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("fla:linear_attention", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_linear_attention(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("fla:simple_gla", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_simple_gla(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("fla:retention", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_retention(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("fla:delta_rule", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_delta_rule(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("fla:gated_delta_rule", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_gated_delta_rule(proof):
    proof()


@pytest.mark.gpu
@pytest.mark.packproof("fla:kda", expected_failures=KNOWN, dtypes=DTYPES, draw_configs=True)
def test_kda(proof):
    proof()
