"""Mutants that are compiled: process, file and judgement; here the worker interprets what a GPU would compile."""

import os
import subprocess
import sys

import pytest

from packproof.harness.mutants.compiled import compiled, executing
from packproof.harness.mutants.mutant import all_mutants

CACHE_KEY = """
import sys
from packproof.harness.mutants.mutant import put_for_good
for name in sys.argv[1:]:
    put_for_good(name)
from packproof.kernels.rotary import _rope_kernel
print(_rope_kernel.cache_key)
"""


def cache_key(*mutants: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", CACHE_KEY, *mutants]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_mutant_is_judged_until_a_property_convicts_it() -> None:
    [mutant] = [m for m in all_mutants() if m.id == "rotary:_write:mask:1"]
    [outcome] = compiled([mutant], ["rope"], "cpu", jobs=1)
    assert (outcome.id, outcome.by, outcome.op) == (mutant.id, "memory", "rope")
    assert outcome.case.startswith("lengths [33], bfloat16")  # the first of no whole tile


def test_an_op_that_was_not_asked_for_judges_nothing() -> None:
    [mutant] = [m for m in all_mutants() if m.id == "rotary:_write:mask:1"]
    [outcome] = compiled([mutant], ["ssd"], "cpu", jobs=1)
    assert (outcome.by, outcome.op) == ("", "")


def test_a_kernel_is_compiled_anew_for_a_mutant_of_what_it_calls() -> None:
    pytest.importorskip("triton", reason="needs triton")
    assert cache_key() == cache_key()
    assert cache_key() != cache_key("rotary:_write:mask:1")
    assert cache_key() != cache_key("sequences:bounds:extremum:0")


def test_on_a_gpu_it_is_the_triton_implementation_that_is_judged() -> None:
    assert [own.target for own in executing("scan_forward", "cuda")] == ["packproof.kernels.scan:selective_scan_triton"]
    assert [own.op for own in executing("worklists", "cpu")] == ["ssd"]
    assert next(own.op for own in executing("sequences", "cpu")) == "rope_qk"
