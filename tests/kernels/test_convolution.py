"""The kernel of causal_conv1d: its cases in the interpreter, and what it says without one."""

from collections.abc import Callable

import pytest
import torch

from packproof.kernels.causal_conv1d import INTERPRETED, PROMISES, causal_conv1d, variants
from packproof.properties.promises import Promises
from packproof.refs.errors import ArgumentError
from tests.kernels.scripts import cases_of

SCRIPT = "convolution_cases.py"


@pytest.mark.parametrize("case", cases_of(SCRIPT))
def test_in_the_interpreter(case: str, interpreted: Callable[[str, str], str]) -> None:
    assert interpreted(SCRIPT, case) == "ok"


def test_without_the_interpreter_a_cpu_tensor_is_refused_with_both_ways_out() -> None:
    x, weight, cu_seqlens = torch.ones(3, 2), torch.ones(2, 4), torch.tensor([0, 3])
    with pytest.raises(ArgumentError, match=r"on cpu, .* to a GPU, or set TRITON_INTERPRET=1 .*packproof\.refs\.\w+$"):
        causal_conv1d(x, weight, cu_seqlens=cu_seqlens)


def test_every_compiled_form_has_a_name_and_types_for_all_arguments() -> None:
    found = variants()
    assert len({variant.name for variant in found}) == len(found)
    for variant in found:
        assert list(variant.signature) == variant.kernel.arg_names
        assert {a for a, kind in variant.signature.items() if kind == "constexpr"} == set(variant.constexprs)


def test_promises_are_promises() -> None:
    assert Promises(**PROMISES).independent
    assert Promises(**PROMISES | INTERPRETED).independent
