"""The kernels of ssd: their cases in the interpreter, and what they say without one."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from packproof.kernels.ssd import INTERPRETED, PROMISES, ssd, variants
from packproof.properties.promises import Promises
from packproof.refs.errors import ArgumentError
from tests.kernels.scripts import cases_of

SCRIPT = "ssd_cases.py"


@pytest.mark.parametrize("case", cases_of(SCRIPT))
def test_in_the_interpreter(case: str, interpreted: Callable[[str, str], str]) -> None:
    assert interpreted(SCRIPT, case) == "ok"


def test_without_the_interpreter_a_cpu_tensor_is_refused_with_both_ways_out() -> None:
    x, dt, A, B = torch.ones(3, 2, 1), torch.ones(3, 2), torch.ones(2), torch.ones(3, 1, 4)
    with pytest.raises(ArgumentError, match=r"on cpu, .* to a GPU, or set TRITON_INTERPRET=1 .*packproof\.refs\.\w+$"):
        ssd(x, dt, A, B, B, cu_seqlens=torch.tensor([0, 3]))


def test_every_compiled_form_has_a_name_and_types_for_all_arguments() -> None:
    found = variants()
    assert len({variant.name for variant in found}) == len(found)
    for variant in found:
        assert list(variant.signature) == variant.kernel.arg_names
        assert {a for a, kind in variant.signature.items() if kind == "constexpr"} == set(variant.constexprs)


def test_the_form_that_failed_in_one_process_out_of_ten_compiles_wherever_things_lie_in_memory() -> None:
    script = [str(Path(__file__).with_name("compile_again.py")), "packproof.kernels.ssd"]
    form = ["nvidia-intra_chunk-bf16-aligned", "sm_100", "8"]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    ran = subprocess.run([sys.executable, *script, *form], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "0"


def test_promises_are_promises() -> None:
    assert Promises(**PROMISES).independent
    assert Promises(**PROMISES | INTERPRETED).independent
