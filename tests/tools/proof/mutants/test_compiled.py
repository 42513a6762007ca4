"""Mutants that are compiled: process, file and outcome; here the worker interprets what a GPU would compile."""

import os
import subprocess
import sys

import pytest

from packproof.base.errors import PackproofError
from packproof.proof.mutants.compiled import kernels_executing, run_compiled
from packproof.proof.mutants.mutant import all_mutants

WEIGHT_TERM = "causal_conv1d_bwd:_causal_conv1d_bwd_weight_kernel:term:1"
CACHE_KEY = """
import sys
from packproof.proof.mutants.mutant import install_permanently
for name in sys.argv[1:]:
    install_permanently(name)
from packproof.kernels.rope import _rope_kernel
print(_rope_kernel.cache_key)
"""

LAUNCHED = """
import sys
import torch
import triton
from triton.backends.compiler import GPUTarget
from packproof.proof.mutants.mutant import install_permanently

class Device:
    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

triton.runtime.driver.set_active(Device())
for name in sys.argv[1:]:
    install_permanently(name)
from packproof.kernels.causal_conv1d_bwd import _causal_conv1d_bwd_weight_kernel as kernel
compiled = kernel.warmup(*[torch.float32] * 3, 5, 64, 4, BLOCK_T=64, BLOCK_D=32, grid=(1,))
print(compiled.asm["ttgir"])
"""


def printed(script: str, *mutants: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_DISABLE_LINE_INFO"] = "1"
    command = [sys.executable, "-c", script, *mutants]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.proof
def test_a_mutant_is_checked_until_a_property_kills_it() -> None:
    [mutant] = [m for m in all_mutants() if m.id == "rope:_store_pairs:mask:1"]
    [outcome] = run_compiled([mutant], ["rope"], "cpu", jobs=1)
    assert (outcome.id, outcome.killed_by, outcome.op) == (mutant.id, "memory", "rope")
    assert outcome.case.startswith("lengths [33], bf16")  # the first with a partial tile


def test_an_op_that_was_not_requested_checks_nothing() -> None:
    [mutant] = [m for m in all_mutants() if m.id == "rope:_store_pairs:mask:1"]
    [outcome] = run_compiled([mutant], ["ssd"], "cpu", jobs=1)
    assert (outcome.killed_by, outcome.op) == ("", "")


@pytest.mark.proof
def test_a_kernel_is_recompiled_for_a_mutant_of_what_it_calls() -> None:
    pytest.importorskip("triton", reason="needs triton")
    assert printed(CACHE_KEY) == printed(CACHE_KEY)
    assert printed(CACHE_KEY) != printed(CACHE_KEY, "rope:_store_pairs:mask:1")
    assert printed(CACHE_KEY) != printed(CACHE_KEY, "sequences:bounds:extremum:0")


@pytest.mark.proof
def test_a_kernel_that_is_launched_is_compiled_as_the_mutant() -> None:
    pytest.importorskip("triton", reason="needs triton")
    mutated, original = (printed(LAUNCHED, *names) for names in ([WEIGHT_TERM], []))
    assert mutated.count("scf.for") == original.count("scf.for") == 1
    assert mutated != original


def test_on_a_gpu_the_triton_implementation_is_checked() -> None:
    assert [own.target for own in kernels_executing("selective_scan_fwd", "cuda")] == [
        "packproof.kernels.selective_scan:selective_scan_triton"
    ]
    assert [own.op for own in kernels_executing("worklists", "cpu")] == [
        "linear_attention",
        "retention",
        "simple_gla",
        "ssd",
    ]
    assert next(own.op for own in kernels_executing("sequences", "cpu")) == "rope_qk"


def test_mutants_of_a_function_that_fails_unchanged_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packproof.proof.mutants.compiled.detected_by", lambda *_: "raised")
    mutants = [m for m in all_mutants() if m.function == "_store_pairs"]
    with pytest.raises(PackproofError, match=r"rope:_store_pairs fails without a change: raised at lengths"):
        next(run_compiled(mutants, ["rope"], "cpu", jobs=1))
